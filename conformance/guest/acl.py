"""NFSv4 access control lists as the kernel has them, in the attribute system.nfs4_acl.

acl.py FILE            prints the entries: A or D, flags, who, mask in hexadecimal, with colons
acl.py FILE ENTRY...   sets them
acl.py FILE =OTHER     sets those of another file
acl.py --dacl ...      the same in the attribute system.nfs4_dacl (Linux 5.18), where the list's own flags, in hexadecimal, come before its entries
"""
import os, struct, sys

DACL = sys.argv[1] == "--dacl"
NAME = "system.nfs4_dacl" if DACL else "system.nfs4_acl"

def entries(path):
    raw, at = os.getxattr(path, NAME), 0
    if DACL:
        yield f"{struct.unpack_from('>I', raw)[0]:x}"
        at += 4
    count, at = struct.unpack_from(">I", raw, at)[0], at + 4
    for _ in range(count):
        kind, flags, mask, length = struct.unpack_from(">IIII", raw, at)
        at += 16
        yield f"{'AD'[kind]}:{flags:x}:{raw[at:at + length].decode()}:{mask:x}"
        at += (length + 3) // 4 * 4

def packed(words):
    out = struct.pack(">I", int(words.pop(0), 16)) if DACL else b""
    out += struct.pack(">I", len(words))
    for word in words:
        kind, flags, who, mask = word.split(":")
        who = who.encode()
        out += struct.pack(">IIII", "AD".index(kind), int(flags, 16), int(mask, 16), len(who))
        out += who + b"\0" * (-len(who) % 4)
    return out

path, *words = sys.argv[2 if DACL else 1:]
if not words:
    print("\n".join(entries(path)))
elif words[0].startswith("="):
    os.setxattr(path, NAME, os.getxattr(words[0][1:], NAME))
else:
    os.setxattr(path, NAME, packed(words))
