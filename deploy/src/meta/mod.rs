//! `sluice meta`.

mod dump;
mod options;
mod owner;
mod progress;
mod source;

use std::path::Path;

use anyhow::{Result, bail, ensure};
use serde_json::json;
use sluice_env::Env;
use sluice_namespace::transfer::{self, Adopted, Load};
use sluice_namespace::{Check, FsError};

use crate::cli;
use crate::status::size;
use dump::{Heading, Writer, is_stdout};
pub(crate) use options::Meta;
use owner::Owner;
use progress::Progress;
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
        Meta::Dump { file, reach, store, json } => {
            dump(Source::open(&reach, &store).await?, &file, json).await
        }
        Meta::Adopt { data_dir, store, json } => adopt(&data_dir, &store, json).await,
        Meta::Load { file, data_dir, store, json } => load(&file, &data_dir, &store, json).await,
    }
}

async fn check(mut source: Source, json: bool) -> Result<()> {
    let mut progress = Progress::new("checking", &source);
    let mut check = Check::default();
    while let Some(rows) = progress.next(&mut source).await? {
        rows.into_iter().for_each(|(key, value)| check.row(&key, value));
    }
    drop(progress);
    let report = check.finish();
    // Not even a root: a store that was just made, of a name that was mistyped.
    if report.inodes == 0 && report.problems.is_empty() {
        bail!("there is no file system to check");
    }
    let problems: Vec<_> = report.problems.iter().take(SHOWN).map(ToString::to_string).collect();
    if json {
        let told = json!({
            "inodes": report.inodes,
            "entries": report.entries,
            "orphans": report.orphans,
            "garbage": report.garbage,
            "read_write_layouts": report.read_write_layouts,
            "degraded_files": report.degraded,
            "older_copy": report.older,
            "problem_count": report.problems.len(),
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
    match report.problems.len() {
        0 if json => Ok(()),
        0 => {
            say!("no contradictions");
            Ok(())
        }
        found => bail!("{found} contradictions in the metadata: keep a dump of it, and report them"),
    }
}

async fn dump(mut source: Source, file: &Path, json: bool) -> Result<()> {
    let heading = Heading::new(source.version(), Env::system().clock.wall().seconds);
    let mut writer = Writer::create(file, &heading)?;
    let mut progress = Progress::new("dumping", &source);
    let mut identity = None;
    while let Some(rows) = progress.next(&mut source).await? {
        for (key, value) in &rows {
            identity = identity.or(transfer::identity(key, value)?);
            writer.row(key, value)?;
        }
    }
    drop(progress);
    if identity.is_none() {
        bail!("there is no file system to dump");
    }
    let (rows, bytes) = writer.finish()?;
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
    }
    Ok(())
}

async fn adopt(dir: &Path, store: &cli::Store, json: bool) -> Result<()> {
    let place = source::place_of(dir, store)?;
    let name = place.name();
    ensure!(place.is_there(), "there is no metadata in {}: give the right --data-dir", dir.display());
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
