//! The guest's first root: busybox, our init, and for qemu the modules that reach the host's file system.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::command::run;
use super::fetch::only_entry;

const INIT: &str = include_str!("../../guest/init.sh");
/// Loaded, with what they depend on, before init mounts anything.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_mmio",
    "virtio_net",
    "virtio_console",
    "fuse",
    "virtiofs",
    "overlay",
    "af_packet",
];

/// Everything that decides what `build` makes.
pub(super) fn sources() -> String {
    format!("{INIT}{MODULES:?}")
}

/// Writes the archive to `target`; `modules` is a `lib/modules` to take drivers from.
pub(super) fn build(target: &Path, modules: Option<&Path>) -> Result<()> {
    let folder = target.parent().context("an archive has a folder")?;
    let tree = tempfile::tempdir_in(folder)?;
    for name in ["bin", "proc", "sys", "dev", "mods", "lib"] {
        fs::create_dir(tree.path().join(name))?;
    }
    let busybox = find("busybox").context("busybox is missing: apt-get install busybox-static")?;
    fs::copy(busybox, tree.path().join("bin/busybox"))?;
    let init = tree.path().join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    if let Some(modules) = modules {
        add_modules(&tree.path().join("mods"), &only_entry(modules)?)?;
    }
    pack(tree.path(), target)
}

fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

fn add_modules(target: &Path, release: &Path) -> Result<()> {
    let text = fs::read_to_string(release.join("modules.dep")).context("cannot read modules.dep")?;
    let mut order = String::new();
    for module in load_order(&text, MODULES) {
        let source = release.join(&module);
        let name =
            Path::new(&module).file_name().context("a module has a name")?.to_string_lossy().into_owned();
        let plain = name.trim_end_matches(".xz");
        if plain == name {
            fs::copy(&source, target.join(plain))?;
        } else {
            let status = Command::new("xz")
                .arg("-dc")
                .arg(&source)
                .stdout(File::create(target.join(plain))?)
                .status()
                .context("cannot start xz")?;
            if !status.success() {
                bail!("cannot unpack {}", source.display());
            }
        }
        order += &format!("{plain}\n");
    }
    fs::write(target.join("order"), order)?;
    Ok(())
}

/// Files to load, dependencies first. `dependencies` is modules.dep: "file: needed-last needed-first".
fn load_order(dependencies: &str, wanted: &[&str]) -> Vec<String> {
    let mut needs = BTreeMap::new();
    let mut by_name = BTreeMap::new();
    for line in dependencies.lines() {
        let Some((file, list)) = line.split_once(':') else { continue };
        let base = file.rsplit('/').next().unwrap_or(file);
        let name = base.split(".ko").next().unwrap_or(base).replace('-', "_");
        needs.insert(file, list.split_whitespace().rev().collect::<Vec<_>>());
        by_name.insert(name, file);
    }
    let mut order: Vec<String> = Vec::new();
    // modules.dep lists every transitive dependency, so one level suffices.
    for file in wanted.iter().filter_map(|name| by_name.get(*name)) {
        for needed in needs.get(file).into_iter().flatten().chain([file]) {
            if !order.iter().any(|known| known == needed) {
                order.push((*needed).to_owned());
            }
        }
    }
    order
}

fn pack(tree: &Path, target: &Path) -> Result<()> {
    let temporary = target.with_extension("new");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "cd \"$1\" && find . | cpio -o -H newc --quiet | gzip -1 >\"$2\"", "pack"])
        .arg(tree)
        .arg(&temporary)
        .stderr(Stdio::piped());
    run(shell)?;
    fs::rename(temporary, target)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_load_after_what_they_need() {
        let text = "kernel/a/virtio-net.ko: kernel/b/failover.ko.xz kernel/b/core.ko\nkernel/b/failover.ko.xz: kernel/b/core.ko\nkernel/b/core.ko:\n";
        let order = load_order(text, &["virtio_net", "absent", "core"]);
        assert_eq!(order, ["kernel/b/core.ko", "kernel/b/failover.ko.xz", "kernel/a/virtio-net.ko"]);
    }
}
