//! The copies of mirrored files are compared, and made equal to the one that an administrator says is right.
//! docs/adr/0034-mirrors-are-compared.md.
//!
//! | module | what |
//! | --- | --- |
//! | `judge` | what differences tell, and which bytes of a data file count (pure) |
//! | `file` | one file |
//! | `mend` | which copies are made equal to which |
//! | `found` | what was found |

mod file;
pub(crate) mod found;
pub(crate) mod judge;
pub(crate) mod mend;

use std::sync::Arc;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_namespace::InodeKey;

use crate::layout::drain::change::Refusal;
use crate::layout::maintenance::progress::State;
use crate::layout::maintenance::{self, Files, Last, Tried, Work};
use crate::server::Mds;
use file::Done;
use found::Found;

/// The comparison that was asked for last.
pub(crate) type Comparisons = Last<Found>;
pub(crate) type Progress = maintenance::progress::Progress<Found>;
pub(crate) type Numbers = maintenance::progress::Numbers<Found>;

/// Begins one: of a file, of all files below a directory, or of all, where `path` is empty. `limit`: bytes per second that data
/// servers read; 0 for none.
///
/// # Errors
/// Why not.
pub(crate) async fn begin(mds: &Arc<Mds>, path: Bytes, limit: u64) -> Result<(), Refusal> {
    let files = match path.is_empty() {
        true => Files::all(file::has_copies),
        false => files_at(mds, &path).await?,
    };
    let busy = "mirrors are being compared already: --look shows how far that is, and --stop ends it";
    let own = Found { one: matches!(files, Files::One(_)), ..Found::default() };
    let progress = Progress::new(path, limit, mds.env.clock.wall().seconds, own);
    let progress = mds.comparisons.begin(progress, busy)?;
    let inner = Arc::clone(mds);
    mds.spawn(async move { tell(&maintenance::run(&inner, &progress, Comparison, files).await) });
    Ok(())
}

async fn files_at(mds: &Mds, path: &[u8]) -> Result<Files, Refusal> {
    let no = |why: &str| Err(Refusal::No(why.to_owned()));
    let inode = maintenance::walk(mds, path).await?;
    if inode.is_directory() {
        return Ok(Files::at(&inode));
    }
    if inode.file().is_none() {
        return no("it is neither a file nor a directory");
    }
    if inode.inline().is_some() {
        return no("its data is kept in the metadata: there are no copies at data servers");
    }
    if !inode.layout().is_some_and(|layout| layout.components.iter().any(|c| c.mirrors > 1)) {
        return no("it has no mirrors: there is one copy of its data");
    }
    Ok(Files::at(&inode))
}

/// Ends the one that runs, soon.
///
/// # Errors
/// None does.
pub(crate) async fn stop(mds: &Mds) -> Result<(), Refusal> {
    mds.comparisons.stop(mds, "no comparison of mirrors is under way").await
}

fn tell(numbers: &Numbers) {
    let (found, not_compared) = (&numbers.own, numbers.missed.files());
    let (compared, differ, mib) = (found.compared, found.differ, found.bytes >> 20);
    match numbers.state {
        State::Done if differ == 0 => {
            tracing::info!(compared, not_compared, mib, "mirrors were compared: none differ");
        }
        State::Done => {
            tracing::warn!(compared, not_compared, differ, mib, "mirrors were compared: some differ")
        }
        _ => {
            tracing::info!(compared, differ, mib, words = %numbers.words, "the comparison of mirrors ended early")
        }
    }
}

struct Comparison;

impl Work for Comparison {
    type Own = Found;
    type Done = Done;

    /// A client that has closed a file has given back what it holds of it by then.
    const AGAIN: &'static [u32] = &[5, 15, 40];
    const WAITS: bool = false;

    fn on_file(
        &self,
        mds: Arc<Mds>,
        key: InodeKey,
        progress: Arc<Progress>,
        again: bool,
    ) -> BoxFuture<'static, Tried<Done>> {
        Box::pin(async move { file::compare(&mds, key, &progress, again).await })
    }

    fn count(key: InodeKey, done: Done, progress: &Progress) {
        match done {
            Done::Nothing => {}
            Done::Equal(bytes) => progress.own(|found| found.equal(bytes)),
            Done::Differs(finding, bytes) => {
                tracing::warn!(
                    file = key.fileid.0,
                    ranges = finding.differences.ranges,
                    bytes = finding.differences.bytes,
                    lost = finding.lost.len(),
                    "the mirrors of a file differ"
                );
                progress.own(|found| found.differs(*finding, bytes));
            }
        }
    }
}
