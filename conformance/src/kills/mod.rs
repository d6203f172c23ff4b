//! `kills`: servers of a real installation on loopback are killed with -9 at random moments under load, again and again,
//! and every promise is checked after each kill. What proves durability is a loss of power (`suite power_loss`): the
//! page cache outlives a killed process. What is proved here is recovery, and exactly-once across it.
//!
//! | module | what |
//! | --- | --- |
//! | `servers` | the installation and its processes |
//! | `cluster` | the FoundationDB cluster of its metadata, whose processes die and hang, too |
//! | `names` | the metadata server dies: a model of the namespace, compared after each kill |
//! | `tree` | that model, one worker's part of it |
//! | `data` | data servers die: every stable WRITE and COMMIT is still there |
//! | `herd` | workers, and when they compare |
//! | `dice` | decisions that a seed repeats |

mod cluster;
pub(crate) mod data;
pub(crate) mod dice;
pub(crate) mod herd;
pub(crate) mod names;
pub(crate) mod servers;
pub(crate) mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::external::fdb::Programs;
use crate::external::server::program;
use servers::Servers;

/// What to kill, and how often.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// How often the metadata server is killed
    #[arg(long, value_name = "N", default_value_t = 20)]
    rounds: u32,
    /// How often a data server is killed
    #[arg(long, value_name = "N", default_value_t = 10)]
    data_rounds: u32,
    /// Of the decisions of the load; the moments of the kills are those of this machine
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// The metadata is checked as a whole after every N-th kill
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    check_every: u32,
    /// The checker must find what clients without sessions do, who send again what was done already
    #[arg(long)]
    control: bool,
    /// The program to test [default: the one beside this one]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// Where its data is kept meanwhile
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Metadata on a FoundationDB cluster of three processes, which are killed and stopped as well; DIR has fdbserver and fdbcli, or PATH
    #[arg(long, value_name = "DIR")]
    fdb: Option<PathBuf>,
    /// Its client library [default: where the loader finds libfdb_c.so]
    #[arg(long, value_name = "FILE", requires = "fdb")]
    fdb_library: Option<PathBuf>,
}

impl Options {
    fn new(rounds: u32, control: bool, data_dir: Option<&Path>) -> Self {
        let (seed, check_every, data_dir) = (1, 10, data_dir.map(Path::to_owned));
        let (sluice, fdb, fdb_library) = (None, None, None);
        Self {
            rounds,
            data_rounds: rounds / 2,
            seed,
            check_every,
            control,
            sluice,
            data_dir,
            fdb,
            fdb_library,
        }
    }

    async fn start(&self, program: &Path) -> Result<Servers> {
        let library = self.fdb_library.clone();
        let programs = self.fdb.clone().map(|folder| Programs { folder, library });
        Servers::start(program, self.data_dir.as_deref(), programs).await
    }
}

/// As many as every check of the tree has time for, and the control.
///
/// # Errors
/// As [`main`].
pub fn few(data_dir: Option<&Path>) -> Result<()> {
    main(&Options::new(20, false, data_dir))?;
    // It ends with the first that is found, as a rule after a few.
    main(&Options::new(200, true, data_dir)).map(drop)
}

/// # Errors
/// A broken promise, or whatever keeps the test from being made.
pub fn main(options: &Options) -> Result<ExitCode> {
    let program = program(options.sluice.as_deref())?;
    let runtime = tokio::runtime::Runtime::new().context("tokio")?;
    runtime.block_on(async {
        let began = Instant::now();
        if options.control {
            let mut servers = options.start(&program).await?;
            return control(names::run(&mut servers, options, true).await);
        }
        if options.rounds > 0 {
            let mut servers = options.start(&program).await?;
            let told = names::run(&mut servers, options, false).await;
            println!("{} in {:.0} s", kept(told, &servers)?, began.elapsed().as_secs_f64());
        }
        let began = Instant::now();
        if options.data_rounds > 0 {
            let mut servers = options.start(&program).await?;
            let told = data::run(&mut servers, options.data_rounds, options.seed).await;
            println!("{} in {:.0} s", kept(told, &servers)?, began.elapsed().as_secs_f64());
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn kept(told: Result<String>, servers: &Servers) -> Result<String> {
    told.with_context(|| format!("the servers said: {}", servers.last_words()))
}

fn control(told: Result<String>) -> Result<ExitCode> {
    match told {
        Ok(told) => bail!("clients that repeat blindly went unnoticed: {told}"),
        Err(error) if error.chain().any(|cause| cause.is::<tree::Broken>()) => {
            println!("found, as it should be: {error:#}");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(error),
    }
}
