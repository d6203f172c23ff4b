//! The cache of kernels: each is downloaded, unpacked and prepared once, then used without a network.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};

use super::apt::Suite;
use super::catalogue::{Kernel, Machine};
use super::command::run;
use super::{host, initramfs};

const SHIM: &str = include_str!("../../guest/xstate_shim.c");
/// qemu 10: with bookworm's own 7.2, TCG breaks some kernels.
const QEMU: (&str, &[&str]) =
    ("bookworm-backports", &["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"]);

/// A kernel ready to boot.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub kernel: Kernel,
    /// What is executed (UML) or given to qemu.
    pub image: PathBuf,
    pub initramfs: PathBuf,
    /// Its `lib/modules`.
    pub modules: PathBuf,
    /// Preloaded library (`Entry::narrow_xstate`).
    pub shim: Option<PathBuf>,
    /// Folder of the newer C library (`Entry::newer_libc`).
    pub libc: Option<PathBuf>,
}

/// How much of a kernel's sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// 2,700 entries of the headers.
    Part,
    /// The headers: 10,000 entries.
    Headers,
    /// 80,000 entries.
    All,
}

/// The cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `$SLUICE_GUEST_CACHE`, else /var/cache/sluice-guests for root, else below the user's cache folder.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn open() -> Result<Self> {
        let root = match std::env::var_os("SLUICE_GUEST_CACHE") {
            Some(folder) => PathBuf::from(folder),
            None if nix::unistd::geteuid().is_root() => PathBuf::from("/var/cache/sluice-guests"),
            None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?)
                .join(".cache/sluice/guests"),
        };
        fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
        let root = root.canonicalize()?;
        Ok(Self { root })
    }

    /// One process at a time prepares; the lock goes with the returned value.
    fn lock(&self) -> Result<Flock<File>> {
        let file = File::create(self.root.join("lock"))?;
        Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, error)| error)
            .context("cannot lock the guest cache")
    }

    /// A kernel, from the cache or the archive.
    ///
    /// # Errors
    /// If packages of the host are missing, or the archive cannot be reached.
    pub fn kernel(&self, kernel: Kernel) -> Result<Prepared> {
        let _lock = self.lock()?;
        let home = self.root.join("kernels").join(kernel.name());
        let entry = kernel.entry();
        let unpacked = home.join("unpacked");
        if !unpacked.exists() {
            eprintln!("fetching {kernel} ({})", entry.suite);
            let missing = host::missing(&[kernel]);
            if !missing.is_empty() {
                bail!("guests need packages that are missing here: apt-get install {}", missing.join(" "));
            }
            remove(&home)?;
            self.unpack(kernel, &home).with_context(|| format!("cannot fetch {kernel}"))?;
            File::create(&unpacked)?;
        }
        let prepared = Prepared {
            kernel,
            image: match entry.machine {
                Machine::Uml => home.join("root/usr/bin/linux.uml"),
                Machine::Qemu => home.join("vmlinux"),
            },
            initramfs: home.join("initramfs"),
            modules: home.join("modules"),
            shim: entry.narrow_xstate.then(|| home.join("xstate_shim.so")),
            libc: entry.newer_libc.then(|| home.join("libc/usr/lib/x86_64-linux-gnu")),
        };
        prepare(&prepared, &home).with_context(|| format!("cannot prepare {kernel}"))?;
        Ok(prepared)
    }

    /// Everything these kernels need, so that later calls need no network.
    ///
    /// # Errors
    /// As `kernel` and `qemu`.
    pub fn ready(&self, kernels: &[Kernel]) -> Result<Vec<Prepared>> {
        if kernels.iter().any(|kernel| kernel.entry().machine == Machine::Qemu) {
            self.qemu()?;
        }
        kernels.iter().map(|kernel| self.kernel(*kernel)).collect()
    }

    fn unpack(&self, kernel: Kernel, home: &Path) -> Result<()> {
        let entry = kernel.entry();
        let suite = Suite::open(&self.root, entry.suite)?;
        let root = home.join("root");
        match entry.machine {
            Machine::Uml => {
                suite.unpack(entry.package, &root)?;
                if entry.newer_libc {
                    Suite::open(&self.root, "trixie")?.unpack("libc6", &home.join("libc"))?;
                }
            }
            Machine::Qemu => {
                let image = suite.newest(entry.package, |name| entry.is_build(name))?;
                let release = image.trim_start_matches("linux-image-");
                // From 7.x on the image package is split in three.
                let split = format!("linux-binary-{release}");
                if suite.names(&split)?.contains(&split) {
                    for part in ["binary", "modules", "base"] {
                        suite.unpack(&format!("linux-{part}-{release}"), &root)?;
                    }
                } else {
                    suite.unpack(&image, &root)?;
                }
            }
        }
        Ok(())
    }

    /// qemu 10, unpacked; its libraries are those of the host's qemu-system-x86 package.
    ///
    /// # Errors
    /// If the archive cannot be reached.
    pub fn qemu(&self) -> Result<PathBuf> {
        self.packages("qemu", QEMU.0, QEMU.1)
    }

    /// The user-space half of the kernel's NFS server, for reference runs.
    ///
    /// # Errors
    /// If the archive cannot be reached.
    pub fn nfs_server(&self) -> Result<PathBuf> {
        self.packages("nfs-server", "bookworm", &["nfs-kernel-server"])
    }

    /// Kernel sources as a tree to copy about.
    ///
    /// # Errors
    /// If the archive cannot be reached.
    pub fn sources(&self, which: Sources) -> Result<PathBuf> {
        if which == Sources::All {
            return Ok(self.packages("sources-full", "bookworm", &["linux-source-6.1"])?.join("usr/src"));
        }
        let _lock = self.lock()?;
        let home = self.root.join("sources");
        if !home.join("unpacked").exists() {
            eprintln!("fetching kernel headers");
            remove(&home)?;
            let suite = Suite::open(&self.root, "bookworm")?;
            let newest = suite.newest("linux-headers-6.1.0-", |name| {
                name.strip_prefix("linux-headers-6.1.0-")
                    .and_then(|rest| rest.strip_suffix("-common"))
                    .is_some_and(|middle| middle.chars().all(|c| c.is_ascii_digit()))
            })?;
            suite.unpack(&newest, &home)?;
            File::create(home.join("unpacked"))?;
        }
        let headers = home.join("usr/src");
        if which == Sources::Headers {
            return Ok(headers);
        }
        let folders = fs::read_dir(&headers)?.map(|entry| Ok(entry?.path().join("include/linux")));
        let folders = folders.collect::<Result<Vec<_>>>()?;
        let part = folders.into_iter().find(|folder| folder.is_dir());
        part.with_context(|| format!("no include/linux below {}", headers.display()))
    }

    fn packages(&self, name: &str, suite: &'static str, packages: &[&str]) -> Result<PathBuf> {
        let _lock = self.lock()?;
        let home = self.root.join(name);
        let unpacked = home.join("unpacked");
        if !unpacked.exists() {
            eprintln!("fetching {name} ({suite})");
            remove(&home)?;
            let suite = Suite::open(&self.root, suite)?;
            for package in packages {
                suite.unpack(package, &home)?;
            }
            File::create(&unpacked)?;
        }
        Ok(home)
    }
}

/// What is derived from the packages; repeated when this program's own part of it has changed.
fn prepare(prepared: &Prepared, home: &Path) -> Result<()> {
    let stamp = home.join("ready");
    let wanted = format!("{}{SHIM}{:?}", initramfs::sources(), prepared.kernel.entry());
    if fs::read_to_string(&stamp).is_ok_and(|ready| ready == wanted) {
        return Ok(());
    }
    let root = home.join("root");
    let modules = match prepared.kernel.entry().machine {
        Machine::Uml => root.join("usr/lib/uml/modules"),
        Machine::Qemu => {
            let modules = [root.join("usr/lib/modules"), root.join("lib/modules")]
                .into_iter()
                .find(|folder| folder.is_dir())
                .context("the kernel package has no modules")?;
            depmod(&root, &modules)?;
            extract(&root, &modules, &prepared.image)?;
            modules
        }
    };
    let _ = fs::remove_file(&prepared.modules);
    symlink(&modules, &prepared.modules)?;
    if let Some(shim) = &prepared.shim {
        compile(home, shim)?;
    }
    let load = (prepared.kernel.entry().machine == Machine::Qemu).then_some(modules.as_path());
    initramfs::build(&prepared.initramfs, load)?;
    fs::write(&stamp, wanted)?;
    Ok(())
}

fn depmod(root: &Path, modules: &Path) -> Result<()> {
    let release = only_entry(modules)?;
    if release.join("modules.dep").exists() {
        return Ok(());
    }
    let merged = root.join("lib");
    if !merged.exists() {
        symlink("usr/lib", &merged)?;
    }
    let mut command = Command::new("depmod");
    command.arg("-b").arg(root).arg(release.file_name().context("a release has a name")?);
    run(command)
}

/// The kernel's ELF image out of its self-extracting one, to be booted directly: decompressing under TCG is slow.
fn extract(root: &Path, modules: &Path, target: &Path) -> Result<()> {
    let mut image = only_entry(modules)?.join("vmlinuz");
    if let Ok(boot) = fs::read_dir(root.join("boot")) {
        for entry in boot {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")) {
                image = path;
            }
        }
    }
    let bytes = fs::read(&image).with_context(|| format!("cannot read {}", image.display()))?;
    let payload = payload(&bytes).with_context(|| format!("{} is no x86 boot image", image.display()))?;
    let tool: &[&str] = match payload {
        [0xfd, b'7', b'z', b'X', ..] => &["xz", "-dc"],
        [0x28, 0xb5, 0x2f, 0xfd, ..] => &["zstd", "-dcq"],
        [0x02, 0x21, 0x4c, 0x18, ..] => &["lz4", "-dc"],
        [0x1f, 0x8b, ..] => &["gzip", "-dc"],
        _ => bail!("{} is compressed in an unknown way", image.display()),
    };
    let packed = target.with_extension("packed");
    fs::write(&packed, payload)?;
    // The image's own size follows the compressed stream and makes the tools complain: only the result counts.
    Command::new(tool[0])
        .args(&tool[1..])
        .stdin(File::open(&packed)?)
        .stdout(File::create(target)?)
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {}", tool[0]))?;
    fs::remove_file(&packed)?;
    if !fs::read(target)?.starts_with(b"\x7fELF") {
        bail!("cannot unpack {}", image.display());
    }
    Ok(())
}

/// The compressed kernel inside a boot image: the x86 boot protocol keeps the number of set-up sectors at 0x1f1, and
/// the payload's offset and length at 0x248 and 0x24c.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word =
        |at: usize| image.get(at..at + 4).and_then(|b| Some(u32::from_le_bytes(b.try_into().ok()?) as usize));
    let sectors = match image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(*sectors),
    };
    let start = (sectors + 1) * 512 + word(0x248)?;
    image.get(start..start.checked_add(word(0x24c)?)?)
}

fn compile(home: &Path, shim: &Path) -> Result<()> {
    let source = home.join("xstate_shim.c");
    fs::write(&source, SHIM)?;
    let mut command = Command::new("gcc");
    command.args(["-O2", "-shared", "-fPIC", "-o"]).arg(shim).arg(&source);
    run(command)
}

/// The one folder inside a folder.
pub(super) fn only_entry(folder: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    Ok(entries.next().with_context(|| format!("{} is empty", folder.display()))??.path())
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot clear {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_follows_the_boot_protocol() {
        let mut image = vec![0; 4096];
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&4u32.to_le_bytes());
        image[1024 + 16..1024 + 20].copy_from_slice(b"data");
        assert_eq!(payload(&image), Some(&b"data"[..]));
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload(&image), None);
        assert_eq!(payload(&image[..0x24c]), None);
    }
}
