//! What commands say: lines on standard output, into whatever reads them.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set where the process is a server: it goes on when nobody reads what it says.
static SERVER: AtomicBool = AtomicBool::new(false);

/// As `println!`, which panics when the reader is gone, as `head` is once it has its lines.
macro_rules! say {
    () => { crate::out::line(format_args!("")) };
    ($($words:tt)*) => { crate::out::line(format_args!($($words)*)) };
}

/// From now on this process outlives its readers.
pub(crate) fn outlives_readers() {
    SERVER.store(true, Ordering::Relaxed);
}

/// One line. A command whose reader has gone ends here, well; one whose output cannot be written fails here.
pub(crate) fn line(words: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let written = Plain(&mut out).write_fmt(words).and_then(|()| out.write_all(b"\n"));
    match written.and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(_) if SERVER.load(Ordering::Relaxed) => {}
        Err(error) => end(&error),
    }
}

/// Without what would move the cursor, or make a terminal do something else: some of what commands say is what clients call
/// themselves and their files. Lines stay.
struct Plain<W>(W);

impl<W: Write> Write for Plain<W> {
    /// Formatting gives whole characters, and takes no less.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let harmless = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '?' } else { c };
        let plain: String = String::from_utf8_lossy(bytes).chars().map(harmless).collect();
        self.0.write_all(plain.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

fn end(error: &std::io::Error) -> ! {
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    complain(format_args!("cannot write to standard output: {error}"));
    std::process::exit(1);
}

/// A line beside the result, on standard error.
pub(crate) fn aside(words: Arguments<'_>) {
    drop(writeln!(Plain(std::io::stderr()), "{words}"));
}

/// An error, to whom it may concern: nobody, if standard error is closed too.
pub(crate) fn complain(words: Arguments<'_>) {
    // As an error, where the journal would take it for a line like any other.
    let priority = if crate::logs::to_journal() { "<3>" } else { "" };
    drop(writeln!(Plain(std::io::stderr()), "{priority}sluice: {words}"));
}

/// An error with its causes, each once: some errors already speak of the one below them.
pub(crate) fn in_words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said {
        said if said.is_empty() => cause,
        said if said.contains(&cause) => said,
        said => format!("{said}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    /// In a process of its own (the one below), for what is under test ends it.
    #[test]
    #[ignore = "run by the test below"]
    fn much() {
        let server = std::env::var_os("SLUICE_TEST_SERVER").is_some();
        if server {
            super::outlives_readers();
        }
        for number in 0..100_000 {
            say!("{number}");
        }
        std::process::exit(7);
    }

    /// What becomes of a process that says much to a reader of one line.
    fn reads_one_line(server: bool) -> std::process::ExitStatus {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "out::tests::much", "--nocapture"]);
        if server {
            command.env("SLUICE_TEST_SERVER", "1");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        child.wait().unwrap()
    }

    #[test]
    fn a_terminal_is_told_lines_and_nothing_else() {
        let mut told = Vec::new();
        let name = "\x1b]0;mine\x07\r\u{9b}2Jä";
        writeln!(super::Plain(&mut told), "a\tb\n{name}").unwrap();
        assert_eq!(String::from_utf8(told).unwrap(), "a\tb\n?]0;mine???2Jä\n");
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("no such file").context("/x: no such file").context("cannot open it");
        assert_eq!(super::in_words(&error), "cannot open it: /x: no such file");
    }

    #[test]
    fn a_command_ends_well_when_its_reader_is_gone_and_a_server_goes_on() {
        let ended = reads_one_line(false);
        assert_eq!((ended.code(), ended.signal()), (Some(0), None));
        assert_eq!(reads_one_line(true).code(), Some(7));
    }
}
