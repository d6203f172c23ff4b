//! Whose files are, for who may not use them, and becoming whoever may.

use std::ffi::CString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::{Gid, Uid, User, geteuid, initgroups, setgid, setgroups, setuid};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use sluice_rpc::KeyError;

/// What a data server opens as it starts, below its store.
const OPENED: [&str; 4] = ["superblock", "boot", "journal", "data"];

fn user(uid: Uid) -> Option<User> {
    User::from_uid(uid).ok().flatten()
}

/// By name, or by number where this host knows none.
fn name(uid: Uid) -> String {
    user(uid).map_or_else(|| uid.to_string(), |user| user.name)
}

/// What is to be done about something that this user may not use, if it is another's: as the end of a message.
fn advice(path: &Path, chown: &str, given: &Path) -> Option<String> {
    let (owner, ours) = (Uid::from_raw(fs::metadata(path).ok()?.uid()), geteuid());
    (owner != ours && !ours.is_root()).then(|| {
        let (owner, ours) = (name(owner), name(ours));
        format!(
            "it belongs to {owner}, and this runs as {ours}: run it as {owner}, or give it away: {chown} {ours}: {}",
            given.display()
        )
    })
}

/// A key file of a server that cannot be read, with whose it is.
pub(crate) fn of_key(error: KeyError) -> anyhow::Error {
    let known = match &error {
        KeyError::Read { path, error } if error.kind() == ErrorKind::PermissionDenied => {
            advice(path, "chown", path)
        }
        _ => None,
    };
    match known {
        Some(advice) => anyhow!("{error}; {advice}"),
        None => error.into(),
    }
}

/// Whether this user may use the store in `dir`, as far as it is there. A device that comes from another host has the numbers of
/// that one's users.
///
/// # Errors
/// One line: what belongs to whom, and what to do.
pub(crate) fn may_use_store(dir: &Path) -> Result<()> {
    let (store, all) = (dir.join("store"), Access::READ_OK | Access::WRITE_OK);
    // Who may not look into the directory finds nothing in it.
    let mut needed = vec![(dir.to_owned(), Access::EXEC_OK), (store.clone(), all | Access::EXEC_OK)];
    needed.extend(OPENED.map(|name| (store.join(name), all)));
    for (path, how) in needed {
        let given = if path == dir { dir } else { &store };
        if access(&path, how) == Err(Errno::ACCESS)
            && let Some(advice) = advice(&path, "chown -R", given)
        {
            bail!("{}: permission denied; {advice}", path.display());
        }
    }
    Ok(())
}

/// Root becomes the owner of `dir`, for good, if that is somebody else: what it makes there the service could not open otherwise.
/// Says who that is.
///
/// # Errors
/// It may not.
pub(crate) fn become_owner(dir: &Path) -> Result<Option<String>> {
    // What is not there is said by whoever wants it.
    let Some(found) = geteuid().is_root().then(|| fs::metadata(dir).ok()).flatten() else { return Ok(None) };
    let owner = Uid::from_raw(found.uid());
    if owner.is_root() {
        return Ok(None);
    }
    let known = user(owner);
    let group = known.as_ref().map_or(Gid::from_raw(found.gid()), |user| user.gid);
    let change = || {
        match &known {
            Some(user) => initgroups(&CString::new(user.name.clone())?, group)?,
            None => setgroups(&[group])?,
        }
        setgid(group)?;
        setuid(owner)?;
        anyhow::Ok(name(owner))
    };
    let cannot =
        || format!("cannot become {}, whose {} is: run this as that user", name(owner), dir.display());
    change().map(Some).with_context(cannot)
}
