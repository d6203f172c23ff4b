//! The cases: what each shows, and what it needs.

use std::time::Duration;

use crate::guest::catalogue::{Kernel, Machine};
use crate::guest::fetch::Sources;

/// Who the second guest is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Partner {
    None,
    /// Another guest with the same kernel.
    Same,
    /// A kernel that takes the other encoding of layouts: stripes here, segments there.
    Other,
}

/// One row of the table. Its script is guest/cases/NAME.sh, run in every guest of the case.
#[derive(Debug)]
pub struct Case {
    pub name: &'static str,
    /// What a pass proves.
    pub shows: &'static str,
    pub partner: Partner,
    pub data_servers: u8,
    /// Seconds of the client's lease.
    pub lease: u32,
    /// Memory of each guest, MiB.
    pub memory: u32,
    /// Hard limit on user-mode-linux; qemu gets four times as much.
    pub seconds: u64,
    /// Meaningful against a reference server: it uses nothing that only Sluice has.
    pub reference: bool,
    /// Part of `suite ci`.
    pub ci: bool,
    /// It is about servers, and whatever the client's kernel, it shows the same; or an old kernel takes very long for it.
    pub newest_only: bool,
    /// Wants kernel sources.
    pub sources: Option<Sources>,
    /// The servers run in a guest that the case switches on and off.
    pub powered: bool,
    /// Of the time limit, the part that each of `--rounds` may take.
    pub seconds_per_round: u64,
    /// Small files are in the metadata, as a new file system has it. Else all are at data servers: most cases are about what
    /// happens there, or on the way.
    pub inline: bool,
}

/// How often that happens of which a case has several rounds, unless somebody says otherwise.
pub const ROUNDS: u32 = 5;

/// What a case is unless it says otherwise.
pub(super) const BASE: Case = Case {
    name: "",
    shows: "",
    partner: Partner::None,
    data_servers: 4,
    lease: 10,
    memory: 768,
    seconds: 900,
    reference: true,
    ci: true,
    newest_only: false,
    sources: None,
    powered: false,
    seconds_per_round: 0,
    inline: false,
};

/// What users do, on a file system as it is shipped.
pub(super) const SHIPPED: Case = Case { inline: true, ..BASE };

/// Every case, quickest first.
pub const CASES: &[Case] = &[
    Case {
        name: "smoke",
        shows: "mount; every file operation of a daily user; a listing of 10,000 entries",
        seconds: 300,
        ..SHIPPED
    },
    Case {
        name: "direct",
        shows: "256 MiB and 64 x 16 MiB, buffered and O_DIRECT, through layouts and never through the MDS",
        memory: 1024,
        ..SHIPPED
    },
    Case {
        name: "proxied",
        shows: "with layouts forbidden, the test of `direct` fails as it should",
        reference: false,
        seconds: 300,
        ..BASE
    },
    Case {
        name: "inline",
        shows: "small files are in the metadata and no data server hears of them; they grow, are cut, mapped, copied, shared, and outlive the MDS",
        partner: Partner::Same,
        reference: false,
        seconds: 400,
        ..SHIPPED
    },
    Case {
        name: "exports",
        shows: "read-only, squashed, forbidden and removed exports, changed under mounts; the pseudo-file-system",
        reference: false,
        seconds: 300,
        ..SHIPPED
    },
    Case {
        name: "acl",
        shows: "NFSv4 access control lists: shown, set, kept with the mode, obeyed, inherited",
        reference: false,
        seconds: 300,
        ..SHIPPED
    },
    Case {
        name: "quota",
        shows: "limits of a user and a tree: EDQUOT for files, sizes and direct writers, `df`, what is removed is free",
        reference: false,
        seconds: 300,
        ..SHIPPED
    },
    Case {
        name: "locks",
        shows: "who holds a lock that another kernel waits for is shown; broken, it is the other's, and the holder hears EIO and goes on",
        partner: Partner::Same,
        reference: false,
        seconds: 300,
        ..SHIPPED
    },
    Case {
        name: "why",
        shows: "a data server out of one client's reach, layouts off: `sluice why` and `status` name the cause",
        reference: false,
        seconds: 300,
        ci: false,
        ..BASE
    },
    Case {
        name: "holes_eof",
        shows: "sparse files; O_DIRECT reads across holes and ends",
        partner: Partner::Same,
        ..BASE
    },
    Case {
        name: "appends",
        shows: "four processes append to a new file, again and again: nothing is lost",
        seconds: 60,
        seconds_per_round: 60,
        ..BASE
    },
    Case {
        name: "logs",
        shows: "five processes of one client append to one log, synced or not, open or opened again: every line once",
        seconds: 60,
        seconds_per_round: 30,
        ..BASE
    },
    Case {
        name: "shared",
        shows: "processes of two clients write one file under byte-range locks: lines at its end, counters side by side",
        partner: Partner::Same,
        seconds: 120,
        seconds_per_round: 60,
        // Without a lock others show old pages (ADR 0032).
        reference: false,
        ..BASE
    },
    Case {
        name: "together",
        shows: "what processes of two clients do: a database, a mail folder, a lock file, logs, mapped and replaced files; and the MDS dies",
        partner: Partner::Same,
        seconds: 240,
        seconds_per_round: 60,
        ci: false,
        reference: false,
        ..SHIPPED
    },
    Case {
        name: "troubled",
        shows: "the same on mirrors and stripes while data servers die, are mute, are emptied, and die with the MDS: no error, nothing lost",
        partner: Partner::Same,
        seconds: 900,
        ci: false,
        reference: false,
        ..BASE
    },
    Case {
        name: "programs",
        shows: "git, rsync, tar, sqlite, fio and PostgreSQL on two clients, in directories that the other one uses at the time",
        partner: Partner::Same,
        memory: 1024,
        seconds: 900,
        ci: false,
        ..SHIPPED
    },
    Case {
        name: "verified",
        shows: "random operations on files that two clients pass to each other, every byte compared, while servers die, are drained, filled and asked for layouts",
        partner: Partner::Same,
        seconds: 120,
        seconds_per_round: 120,
        ci: false,
        ..BASE
    },
    Case {
        name: "segments",
        shows: "mirrored files of every policy, written over the ends of layout segments: each copy has all of it",
        seconds: 180,
        seconds_per_round: 60,
        ci: false,
        reference: false,
        ..BASE
    },
    Case {
        name: "tls",
        shows: "mounted with xprtsec=: offered, demanded, with certificates; data servers under it, too; exports that want it; servers die. It wants tlshd (ktls-utils)",
        seconds: 400,
        ci: false,
        newest_only: true,
        reference: false,
        ..BASE
    },
    Case {
        name: "kerberos",
        shows: "mounted with sec=krb5, krb5i and krb5p: who has no ticket is nobody, who comes without one is not let in; owners by name, taken and told; the metadata server dies. It wants krb5-kdc, krb5-admin-server, krb5-user",
        seconds: 200,
        ci: false,
        reference: false,
        ..BASE
    },
    Case {
        name: "coherency",
        shows: "close-to-open between two clients; truncate under a read-write layout; random mmap reads",
        partner: Partner::Same,
        ..BASE
    },
    Case {
        name: "copies",
        shows: "cp and copy_file_range: the data servers copy, sparse files and any range too, as a client would by hand",
        ..BASE
    },
    Case {
        name: "delegations",
        shows: "files opened again without a word; what is written, locked and removed is seen all the same",
        partner: Partner::Other,
        ci: false,
        ..SHIPPED
    },
    Case {
        name: "delegated_times",
        shows: "a client that answers for times: the calls it saves, what writing moves, which times of old are lost",
        partner: Partner::Other,
        reference: false,
        ci: false,
        seconds: 300,
        ..BASE
    },
    Case {
        name: "mixed",
        shows: "stripes and segments on one file, with byte-range locks; N-to-1 records, one client killed",
        partner: Partner::Other,
        ..BASE
    },
    Case {
        name: "differential_part",
        shows: "the same as `differential`, with a quarter of the headers",
        newest_only: true,
        sources: Some(Sources::Part),
        ..SHIPPED
    },
    Case {
        name: "differential",
        shows: "kernel headers, git, sqlite, rename-over: the same on ext4 and on Sluice",
        seconds: 1800,
        ci: false,
        sources: Some(Sources::Headers),
        ..SHIPPED
    },
    Case {
        name: "differential_full",
        shows: "the same with a whole kernel source tree",
        seconds: 10_800,
        memory: 1536,
        ci: false,
        sources: Some(Sources::All),
        ..SHIPPED
    },
    Case {
        name: "restart",
        shows: "the MDS and data servers killed with -9 under a writer: it goes on, and what was synced is there",
        reference: false,
        ..BASE
    },
    Case {
        name: "upgrade",
        shows: "every server stopped and started again, one after the other, under two kernels at work: no error",
        partner: Partner::Other,
        reference: false,
        seconds: 600,
        ..BASE
    },
    Case {
        name: "ds_loss",
        shows: "a data server gone, and one that is mute: a clear EIO in time, other files unharmed",
        reference: false,
        ..BASE
    },
    Case {
        name: "mirror_loss",
        shows: "two mirrors, a data server gone, then one mute: nobody sees an error, I/O goes on directly, mirrors heal",
        reference: false,
        ..BASE
    },
    Case {
        name: "drain",
        shows: "a data server emptied, removed and stopped under readers and writers: nobody sees an error, nothing is lost",
        reference: false,
        seconds: 400,
        ..BASE
    },
    Case {
        name: "balance",
        shows: "data servers with devices of their own filled evenly under readers and writers: nobody sees an error, nothing is lost",
        reference: false,
        ci: false,
        seconds: 400,
        ..BASE
    },
    Case {
        name: "more_mirrors",
        shows: "files get a second copy under readers and writers, outlive a data server, and give it up again: nobody sees an error",
        reference: false,
        ci: false,
        seconds: 400,
        ..BASE
    },
    Case {
        name: "keys",
        shows: "the key of data files' handles replaced under readers and writers, and again while the metadata server dies: nobody sees an error",
        reference: false,
        newest_only: true,
        seconds: 400,
        ..BASE
    },
    Case {
        name: "power_loss",
        shows: "the servers' machine loses power under load, again and again: no promise is broken, the client goes on",
        data_servers: 2,
        lease: 5,
        seconds: 60,
        seconds_per_round: 120,
        reference: false,
        newest_only: true,
        powered: true,
        ..SHIPPED
    },
    Case {
        name: "power_control",
        shows: "servers that do not sync fail the test of `power_loss`, as they should",
        data_servers: 2,
        lease: 5,
        seconds: 400,
        reference: false,
        powered: true,
        ci: false,
        ..BASE
    },
    Case {
        name: "small_files",
        shows: "untar, copy and removal of small files: files per second, and what one costs the servers",
        seconds: 900,
        ci: false,
        ..SHIPPED
    },
    Case {
        name: "scaling",
        shows: "shaped links, 1, 2, 4, 8 data servers: at least 90 % of linear",
        seconds: 1500,
        data_servers: 8,
        memory: 1536,
        reference: false,
        newest_only: true,
        ..BASE
    },
];

impl Case {
    /// Finds a case by name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        CASES.iter().find(|case| case.name == name)
    }

    /// Up to which size small files are in the metadata, as `sluice up` wants it said.
    #[must_use]
    pub fn inline_limit(&self) -> &'static str {
        if self.inline { "32KiB" } else { "off" }
    }

    /// With which of these kernels, the newest of which is the last, it is worth the time of a check that has little.
    #[must_use]
    pub fn worth<'a>(&self, kernels: &'a [&'a str]) -> &'a [&'a str] {
        // Where two kernels meet, each of them is there in any case.
        let once = self.newest_only || self.partner == Partner::Other;
        if once { &kernels[kernels.len().saturating_sub(1)..] } else { kernels }
    }

    /// Hard limit on user-mode-linux, with so many rounds.
    #[must_use]
    pub fn most_seconds(&self, rounds: u32) -> u64 {
        self.seconds + self.seconds_per_round * u64::from(rounds)
    }

    /// How many guests take part.
    #[must_use]
    pub fn guests(&self) -> u8 {
        if self.partner == Partner::None { 1 } else { 2 }
    }

    /// The kernel of each guest; the first is the one under test.
    #[must_use]
    pub fn kernels(&self, tested: Kernel) -> Vec<Kernel> {
        let other = |kernel: &Kernel| {
            kernel.entry().machine == Machine::Uml && kernel.entry().stripes != tested.entry().stripes
        };
        let second = match self.partner {
            Partner::None => None,
            Partner::Same => Some(tested),
            Partner::Other => Kernel::all().find(other),
        };
        std::iter::once(tested).chain(second).collect()
    }

    /// Hard limit with this kernel.
    #[must_use]
    pub fn limit(&self, tested: Kernel, rounds: u32) -> Duration {
        let factor = if tested.entry().machine == Machine::Qemu { 4 } else { 1 };
        Duration::from_secs(self.most_seconds(rounds) * factor)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::suite::foreign::FOREIGN;

    #[test]
    fn every_case_has_its_script_and_every_script_its_case() {
        let foreign: Vec<_> = FOREIGN.iter().map(|entry| &entry.case).collect();
        for (folder, cases) in [("guest/cases", CASES.iter().collect()), ("guest/external", foreign)] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
            let mut scripts: Vec<_> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
                .collect();
            scripts.sort();
            let mut names: Vec<_> = cases.iter().map(|case| case.name.to_owned()).collect();
            names.sort();
            assert_eq!(scripts, names);
        }
    }

    #[test]
    fn mixed_cases_meet_the_other_encoding() {
        let mixed = Case::find("mixed").unwrap();
        for kernel in Kernel::all() {
            let kernels = mixed.kernels(kernel);
            assert_ne!(kernels[0].entry().stripes, kernels[1].entry().stripes);
        }
    }

    /// `suite ci` over both kernels is a command of its own.
    #[test]
    fn a_check_runs_every_case_and_with_both_kernels_what_depends_on_them() {
        let with = |name| Case::find(name).unwrap().worth(&["old", "new"]);
        assert_eq!(with("direct"), ["old", "new"]);
        for name in ["differential_part", "keys", "power_loss", "scaling", "upgrade", "mixed"] {
            assert_eq!(with(name), ["new"], "{name}");
        }
        assert!(CASES.iter().all(|case| case.worth(&["new"]) == ["new"]));
    }
}
