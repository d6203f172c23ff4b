//! `sluice meta`.

mod dump;
mod options;
mod owner;
mod progress;
mod series;
mod source;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use sluice_env::Env;
use sluice_namespace::transfer::{self, Adopted, Load};
use sluice_namespace::{Check, FsError};

use crate::cli;
use crate::status::size;
use dump::{Heading, ReadBack, Writer, is_stdout, must_be_free};
pub(crate) use options::Meta;
use owner::Owner;
use progress::Progress;
use series::Series;
use source::Source;

/// Contradictions printed; the rest is counted.
const SHOWN: usize = 1_000;

pub(crate) async fn run(command: Meta) -> Result<()> {
    match command {
        Meta::Check { file, reach, store, json } => {
            let source = match file {
                Some(file) => Source::dump(&file)?,
                None => Source::open(&reach, &store).await?,
            };
            check(source, json).await
        }
        Meta::Dump { file, into, keep, reach, store, json } => match (file, into) {
            (_, Some(dir)) => {
                Series::must_be_there(&dir)?;
                dump_into(Source::open(&reach, &store).await?, &dir, keep, json).await
            }
            (Some(file), None) => {
                must_be_free(&file)?;
                dump(Source::open(&reach, &store).await?, &file, json).await
            }
            // The parser lets nobody in without.
            (None, None) => bail!("give a FILE, or --into DIR"),
        },
        Meta::Adopt { data_dir, store, json } => adopt(&data_dir, &store, json).await,
        Meta::Load { file, data_dir, store, json } => load(&file, &data_dir, &store, json).await,
    }
}

async fn check(mut source: Source, json: bool) -> Result<()> {
    let mut progress = Progress::new("checking", &source);
    let mut check = Check::default();
    let mut superblock = false;
    while let Some(rows) = progress.next(&mut source).await? {
        for (key, value) in rows {
            ensure!(
                !transfer::says_loading(&key),
                "a load was broken off here: what is there is not all of a file system; `sluice meta load` begins it anew"
            );
            superblock |= transfer::is_superblock(&key);
            check.row(&key, value);
        }
    }
    drop(progress);
    let report = check.finish();
    // Not even a root: a store that was just made, of a name that was mistyped.
    if report.inodes == 0 && report.problems.is_empty() {
        bail!("there is no file system to check");
    }
    let lacks =
        (!superblock).then(|| "there is no superblock: no metadata server begins with this".to_owned());
    let problem_count = report.problems.len() + usize::from(!superblock);
    let found = report.problems.iter().map(ToString::to_string);
    let problems: Vec<_> = lacks.into_iter().chain(found).take(SHOWN).collect();
    if json {
        let told = json!({
            "inodes": report.inodes,
            "entries": report.entries,
            "orphans": report.orphans,
            "garbage": report.garbage,
            "read_write_layouts": report.read_write_layouts,
            "degraded_files": report.degraded,
            "older_copy": report.older,
            "problem_count": problem_count,
            "problems": problems,
        });
        say!("{}", serde_json::to_string_pretty(&told)?);
    } else {
        problems.iter().for_each(|problem| say!("{problem}"));
        say!(
            "{} inodes, {} entries; {} without a name but open",
            report.inodes,
            report.entries,
            report.orphans
        );
        say!(
            "{} data files to remove, {} files being written to, {} with mirrors to heal",
            report.garbage,
            report.read_write_layouts,
            report.degraded
        );
        if report.older {
            say!("an older copy of what was served: data servers are refused until `sluice meta adopt`");
        }
    }
    match problem_count {
        0 if json => Ok(()),
        0 => {
            say!("no contradictions");
            Ok(())
        }
        found => bail!("{found} contradictions in the metadata: keep a dump of it, and report them"),
    }
}

async fn dump(mut source: Source, file: &Path, json: bool) -> Result<()> {
    let writer = written(&mut source, |_, heading| Writer::create(file, heading)).await?;
    let (rows, bytes) = writer.finish(ReadBack::No)?;
    source.tell_dumped(rows, bytes, false).await;
    if is_stdout(file) {
        return Ok(());
    }
    if json {
        say!("{}", json!({ "file": file.display().to_string(), "rows": rows, "bytes": bytes }));
    } else {
        say!("{}: {rows} rows in {}; keep it as safe as the cluster key", file.display(), size(bytes));
    }
    Ok(())
}

/// One more of a series. What fails before it has its name leaves the older ones alone.
async fn dump_into(mut source: Source, dir: &Path, keep: Option<u32>, json: bool) -> Result<()> {
    let mut begun = None;
    let writer = written(&mut source, |uuid, heading| {
        let series = Series::open(dir, uuid)?;
        let file = series.next_file(heading.seconds);
        let writer = Writer::create(&file, heading)?;
        begun = Some((series, file));
        Ok(writer)
    })
    .await?;
    let (rows, bytes) = writer.finish(ReadBack::Yes)?;
    let Some((series, file)) = begun else { bail!("nothing was written") };
    source.tell_dumped(rows, bytes, true).await;
    let removed = match keep {
        Some(keep) => series.keep(keep, &file).with_context(|| {
            format!("{} is complete, and older ones are still to be removed", file.display())
        })?,
        None => Vec::new(),
    };
    if json {
        let removed: Vec<_> = removed.iter().map(|file| file.display().to_string()).collect();
        let file = file.display().to_string();
        let told =
            json!({ "file": file, "rows": rows, "bytes": bytes, "verified": true, "removed": removed });
        say!("{told}");
        return Ok(());
    }
    removed.iter().for_each(|file| say!("{}: removed, for newer ones are kept", file.display()));
    say!("{}: {rows} rows in {}, read back; keep it as safe as the cluster key", file.display(), size(bytes));
    Ok(())
}

/// All rows, by a writer that is made when it is known whose they are.
async fn written(
    source: &mut Source,
    create: impl FnOnce([u8; 16], &Heading) -> Result<Writer>,
) -> Result<Writer> {
    let heading = Heading::new(source.version(), Env::system().clock.wall().seconds);
    let mut progress = Progress::new("dumping", source);
    let mut page = progress.next(source).await?;
    let mut identity = None;
    // The row that says it comes first.
    for (key, value) in page.iter().flatten().take(1) {
        identity = transfer::identity(key, value)?;
    }
    let Some(identity) = identity else { bail!("there is no file system to dump") };
    let mut writer = create(identity, &heading)?;
    while let Some(rows) = page {
        for (key, value) in &rows {
            writer.row(key, value)?;
        }
        page = progress.next(source).await?;
    }
    Ok(writer)
}

async fn load(file: &Path, dir: &Path, store: &cli::Store, json: bool) -> Result<()> {
    let mut source = Source::dump(file)?;
    let place = source::place_of(dir, store)?;
    let name = place.name();
    let _owner = Owner::of(place.dir())?;
    let db = source::store_of(&place).await?;
    let mut load = match Load::begin(db.clone(), source.version()).await {
        Err(FsError::Exists) => {
            bail!(
                "{name} holds a file system: a dump is loaded into an empty store; move that one away first"
            )
        }
        begun => begun?,
    };
    let mut progress = Progress::new("loading", &source);
    while let Some(rows) = progress.next(&mut source).await? {
        for (key, value) in rows {
            load.row(key, value).await?;
        }
    }
    load.finish().await?;
    db.close().await?;
    let rows = progress.rows();
    drop(progress);
    if json {
        say!("{}", json!({ "store": name, "rows": rows }));
    } else {
        say!("{name}: {rows} rows loaded; start the metadata server");
        compare_mirrors();
    }
    Ok(())
}

/// Which mirrors missed writes since is not in metadata of before. That all are to be made equal is not said there either: it
/// would not be known which of two is right, and the one that missed writes might be taken (docs/adr/0012).
fn compare_mirrors() {
    say!(
        "if there are mirrors: `sluice mirror compare --all`, for some may have missed writes that this does not know of"
    );
}

async fn adopt(dir: &Path, store: &cli::Store, json: bool) -> Result<()> {
    let place = source::place_of(dir, store)?;
    let name = place.name();
    if !place.is_there() {
        place.may_be_looked_into()?;
        bail!("there is no metadata in {}: give the right --data-dir", dir.display());
    }
    let _owner = Owner::of(place.dir())?;
    let db = source::store_of(&place).await?;
    if !place.has_versions_of_its_own() {
        compare_versions(&name, Source::at_rest(db.clone(), None).await?).await?;
    }
    let Some(adopted) = transfer::adopt(&db).await? else {
        bail!("there is no file system in {name}");
    };
    db.close().await?;
    let Adopted { next_file, next_data_file, epoch, older } = adopted;
    if json {
        let told = json!({
            "store": name,
            "next_file": next_file,
            "next_data_file": next_data_file,
            "epoch": epoch,
            "was_refused": older.is_some(),
        });
        say!("{told}");
        return Ok(());
    }
    say!(
        "{name}: adopted: files go on from number {next_file}, data files from {next_data_file}, starts from epoch {epoch}"
    );
    say!("start the metadata server on this copy, and on no other from now on");
    say!(
        "files made since it was copied are gone; `sluice ds audit` shows what data servers hold that belongs to no file"
    );
    compare_mirrors();
    Ok(())
}

/// A cluster that a backup is restored in may have come less far than the one that it was made of: what changes there would
/// seem older than what did not.
async fn compare_versions(name: &str, mut source: Source) -> Result<()> {
    let mut progress = Progress::new("looking through", &source);
    let mut newest = 0;
    while let Some(rows) = progress.next(&mut source).await? {
        for (key, value) in rows {
            newest = transfer::version_of(&key, &value)?.unwrap_or_default().max(newest);
        }
    }
    drop(progress);
    let version = source.version();
    ensure!(
        newest <= version,
        "{name}: the cluster has come to version {version}, and these metadata are from one that had come to {newest}: with no metadata server running, `sluice meta dump` them, and `sluice meta load` that under another --fdb-name, or into an empty --data-dir"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
