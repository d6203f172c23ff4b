//! Whose a store is that root has opened or made: the owner's of the data directory, in the end. The service runs as that
//! user and could not open it otherwise.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, openat, statat};
use rustix::io::Errno;

/// What a store may make in a data directory.
const MADE: [&CStr; 2] = [c"metadata", c"identity"];

/// When it is dropped, what root made is the owner's. After the store, so that nothing is made any more.
#[derive(Debug)]
pub(super) struct Owner {
    dir: PathBuf,
    user: Uid,
    group: Gid,
}

impl Owner {
    /// Of the data directory, or, as long as it is not there, of what it will be in. Nobody, if this user is not root or
    /// all is root's.
    pub(super) fn of(dir: &Path) -> Result<Option<Self>> {
        if !nix::unistd::geteuid().is_root() {
            return Ok(None);
        }
        let dir = std::path::absolute(dir).with_context(|| dir.display().to_string())?;
        let there = dir.ancestors().find_map(|dir| std::fs::metadata(dir).ok());
        Ok(there.filter(|there| there.uid() != 0).map(|there| Self {
            dir,
            user: Uid::from_raw(there.uid()),
            group: Gid::from_raw(there.gid()),
        }))
    }

    fn hand_over(&self) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, &self.dir, flags, Mode::empty())?;
        for made in MADE {
            match self.give(dir.as_fd(), made) {
                Err(Errno::NOENT) => {}
                given => given?,
            }
        }
        // It was made, too, if it is root's.
        self.give_one(CWD, self.dir.as_path()).map(drop)
    }

    /// With all that is in it. No link is followed: the owner may put some there meanwhile.
    fn give(&self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        if self.give_one(parent, name)? == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = openat(parent, name, flags, Mode::empty())?;
            for entry in Dir::read_from(&dir)? {
                let entry = entry?;
                if entry.file_name() != c"." && entry.file_name() != c".." {
                    self.give(dir.as_fd(), entry.file_name())?;
                }
            }
        }
        Ok(())
    }

    /// If it is root's. A file with another name elsewhere may be something else's.
    fn give_one(
        &self,
        parent: BorrowedFd<'_>,
        name: impl rustix::path::Arg + Copy,
    ) -> Result<FileType, Errno> {
        let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        if found.st_uid == 0 && (kind == FileType::Directory || found.st_nlink == 1) {
            chownat(parent, name, Some(self.user), Some(self.group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(kind)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Err(error) = self.hand_over() {
            crate::out::aside(format_args!(
                "warning: {} has files of root's that its owner cannot open: {error}; chown -R {}:{} it",
                self.dir.display(),
                self.user.as_raw(),
                self.group.as_raw()
            ));
        }
    }
}
