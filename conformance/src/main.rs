//! `cargo check-all` and the longer suites: see docs/TESTING.md.
#![allow(clippy::print_stderr, reason = "a command-line harness")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sluice_conformance::external::{guests, pynfs};
use sluice_conformance::{bench, check, guest, hosts, kills, soak, suite};

#[cfg(feature = "bench-mds")]
#[global_allocator]
static ALLOCATOR: sluice_conformance::allocations::Counting = sluice_conformance::allocations::Counting;

#[derive(Parser)]
#[command(name = "sluice-conformance", about = "The proof of Sluice: one command per suite")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Format, lint, layout rules, tests, fuzzing, kernel clients: everything CI runs
    Check(check::Options),
    /// Stock Linux kernels as clients
    #[command(subcommand)]
    Guest(guest::Guest),
    /// Sluice with stock Linux kernels as clients, case by case
    Suite(suite::Options),
    /// The chapter about several hosts of docs/OPERATIONS.md to the letter, with kernels as clients, and a reboot of all
    ThreeHosts(hosts::Options),
    /// What administrators do wrong, on the same hosts: `sluice doctor` or `status` names each cause
    Faults(hosts::Options),
    /// The NFSv4.1 and 4.2 tests of pynfs, where it is at hand
    Pynfs(pynfs::Options),
    /// POSIX semantics on a mount, by pjdfstest, where it is at hand: DIR/bin/pjdfstest
    Pjdfstest(guests::Options),
    /// The Connectathon tests on a mount, where they are at hand
    Cthon04(guests::Options),
    /// Random operations on a file, checked, by the fsx of xfstests, where it is at hand: DIR/fsx
    Fsx(guests::Random),
    /// Random operations on a tree, by the fsstress of xfstests, where it is at hand: DIR/fsstress
    Fsstress(guests::Random),
    /// The quick generic tests of xfstests on a mount, where it is at hand
    Xfstests(guests::Options),
    /// kill -9 of servers under load, again and again, with checkers that know what was promised
    Kills(kills::Options),
    /// A mixed load for long: memory, descriptors, threads and stores of the servers must stop growing
    Soak(soak::Options),
    /// Measure an installation on this host: data servers, names, a large directory, memory
    Bench(bench::Options),
    /// Measure one data server beside NFS-Ganesha and a server that answers from memory
    BenchDs(bench::ds::Options),
    /// Measure what a stock kernel's mount does with nothing cached, beside that kernel's own server
    BenchClient(bench::client::Options),
    /// Measure the metadata server beside its store and NFS-Ganesha
    #[cfg(feature = "bench-mds")]
    BenchMds(bench::mds::Options),
    /// A metadata server that counts its allocations, for `bench-mds`
    #[cfg(feature = "bench-mds")]
    #[command(hide = true)]
    CountedMds(bench::mds::counted::Options),
    /// The load inside a guest, for `bench-client`
    #[command(hide = true, subcommand)]
    ClientLoad(bench::client::load::Load),
    /// The server that answers from memory, for `bench-ds`
    #[command(hide = true)]
    Ceiling,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Check(options) => check::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Guest(command) => guest::main(&command),
        Command::Suite(options) => suite::main(&options),
        Command::ThreeHosts(options) => options.run("three_hosts.py"),
        Command::Faults(options) => options.run("faults.py"),
        Command::Pynfs(options) => pynfs::main(&options),
        Command::Pjdfstest(options) => options.run("pjdfstest", &[], true),
        Command::Cthon04(options) => options.run("cthon04", &[], true),
        Command::Fsx(options) => options.run("fsx"),
        Command::Fsstress(options) => options.run("fsstress"),
        Command::Xfstests(options) => options.run("xfstests", &[], true),
        Command::Kills(options) => kills::main(&options),
        Command::Soak(options) => soak::main(&options),
        Command::Bench(options) => bench::main(&options),
        Command::BenchDs(options) => bench::ds::main(&options),
        #[cfg(feature = "bench-mds")]
        Command::BenchMds(options) => bench::mds::main(&options),
        #[cfg(feature = "bench-mds")]
        Command::CountedMds(options) => bench::mds::counted::serve(&options),
        Command::BenchClient(options) => bench::client::main(&options),
        Command::ClientLoad(load) => load.run().map(|()| ExitCode::SUCCESS),
        Command::Ceiling => bench::ds::ceiling::serve(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
