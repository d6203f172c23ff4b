"""NFSv4 access control lists as the kernel has them, in the attribute system.nfs4_acl.

acl.py FILE            prints the entries: A or D, flags, who, mask in hexadecimal, with colons
acl.py FILE ENTRY...   sets them
acl.py FILE =OTHER     sets those of another file
"""
import os, struct, sys

NAME = "system.nfs4_acl"

def entries(path):
    raw, at = os.getxattr(path, NAME), 4
    for _ in range(struct.unpack_from(">I", raw)[0]):
        kind, flags, mask, length = struct.unpack_from(">IIII", raw, at)
        at += 16
        yield f"{'AD'[kind]}:{flags:x}:{raw[at:at + length].decode()}:{mask:x}"
        at += (length + 3) // 4 * 4

def packed(words):
    out = struct.pack(">I", len(words))
    for word in words:
        kind, flags, who, mask = word.split(":")
        who = who.encode()
        out += struct.pack(">IIII", "AD".index(kind), int(flags, 16), int(mask, 16), len(who))
        out += who + b"\0" * (-len(who) % 4)
    return out

path, words = sys.argv[1], sys.argv[2:]
if not words:
    print("\n".join(entries(path)))
elif words[0].startswith("="):
    os.setxattr(path, NAME, os.getxattr(words[0][1:], NAME))
else:
    os.setxattr(path, NAME, packed(words))
