use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

fn written(folder: &Path, rows: &[(Vec<u8>, Vec<u8>)]) -> PathBuf {
    let file = folder.join("dump");
    let mut writer = Writer::create(&file, &Heading::new(77, 5)).unwrap();
    assert!(!file.exists(), "not before it is whole");
    rows.iter().for_each(|(key, value)| writer.row(key, value).unwrap());
    let (count, bytes) = writer.finish(ReadBack::No).unwrap();
    assert_eq!((count, bytes), (rows.len() as u64, fs::metadata(&file).unwrap().len()));
    file
}

fn read(file: &Path) -> Result<Vec<KeyValue>> {
    let mut reader = Reader::open(file)?;
    let mut all = Vec::new();
    loop {
        match reader.rows()? {
            rows if rows.is_empty() => return Ok(all),
            rows => all.extend(rows),
        }
    }
}

fn some_rows() -> Vec<(Vec<u8>, Vec<u8>)> {
    let row = |n: u32| (n.to_be_bytes().to_vec(), vec![n as u8; (n as usize * 37) % 3_000]);
    let mut rows: Vec<_> = (1..2_000).map(row).collect();
    rows.push((vec![1; MAX_KEY], vec![2; MAX_VALUE]));
    rows
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let rows = some_rows();
    let file = written(folder.path(), &rows);
    let heading = Reader::open(&file).unwrap().heading;
    assert_eq!((heading.version, heading.seconds), (77, 5));
    let back: Vec<_> =
        read(&file).unwrap().into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert_eq!(back, rows);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    // Nor what somebody put where it is written.
    fs::remove_file(&file).unwrap();
    let partial = folder.path().join("dump.partial");
    fs::write(&partial, "seen by all").unwrap();
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o644)).unwrap();
    written(folder.path(), &rows);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    // It is not written over.
    assert!(Writer::create(&file, &Heading::new(1, 1)).is_err());
}

#[test]
fn a_dump_that_is_cut_or_damaged_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), &some_rows());
    let whole = fs::read(&file).unwrap();
    let bad = folder.path().join("bad");
    let steps = (0..whole.len()).step_by(whole.len() / 200);
    for at in steps {
        fs::write(&bad, &whole[..at]).unwrap();
        assert!(read(&bad).is_err(), "cut at {at}");
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&bad, &damaged).unwrap();
        assert!(read(&bad).is_err(), "damaged at {at}");
    }
    fs::write(&bad, b"something else entirely").unwrap();
    assert!(read(&bad).unwrap_err().to_string().contains("not a dump"));
    assert!(read(&folder.path().join("absent")).is_err());
}

#[test]
fn a_newer_dump_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new");
    let heading = Heading { format: FORMAT + 1, ..Heading::new(1, 1) };
    Writer::create(&file, &heading).unwrap().finish(ReadBack::No).unwrap();
    assert!(Reader::open(&file).err().unwrap().to_string().contains("newer"));
}

/// A device that loses or changes what it took.
#[test]
fn what_is_not_read_back_as_it_was_written_is_no_dump() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dump");
    let partial = folder.path().join("dump.partial");
    let row = |n: u32| (n.to_be_bytes().to_vec(), vec![u8::try_from(n % 251).unwrap(); 700]);
    for spoil in [true, false] {
        let mut writer = Writer::create(&file, &Heading::new(77, 5)).unwrap();
        let mut random = 1u32;
        for n in 0..2000 {
            let (key, mut value) = row(n);
            // Not to be packed into nothing.
            value.iter_mut().for_each(|byte| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = random.to_be_bytes()[0];
            });
            writer.row(&key, &value).unwrap();
        }
        assert!(fs::metadata(&partial).unwrap().len() > 300_000, "most of it is in the file by now");
        if spoil {
            use std::os::unix::fs::FileExt;
            let other = OpenOptions::new().write(true).open(&partial).unwrap();
            other.write_all_at(b"?", 200_000).unwrap();
            let said = format!("{:#}", writer.finish(ReadBack::Yes).unwrap_err());
            assert!(said.starts_with("what was written cannot be read back: "), "{said}");
            assert!(said.contains("is damaged near byte"), "{said}");
            assert!(!file.exists() && !partial.exists());
        } else {
            let (rows, bytes) = writer.finish(ReadBack::Yes).unwrap();
            assert_eq!((rows, bytes), (2000, fs::metadata(&file).unwrap().len()));
        }
    }
}

#[test]
fn what_is_broken_off_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dump");
    let mut writer = Writer::create(&file, &Heading::new(77, 5)).unwrap();
    writer.row(b"key", b"value").unwrap();
    drop(writer);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Neither is there under its name when it is not whole, nor does one spoil the other.
#[test]
fn two_dumps_are_not_written_to_one_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dump");
    let mut first = Writer::create(&file, &Heading::new(77, 5)).unwrap();
    first.row(b"key", b"first").unwrap();
    let refused = Writer::create(&file, &Heading::new(78, 6)).err().unwrap();
    assert!(format!("{refused:#}").contains("another dump is being written"), "{refused:#}");
    assert_eq!(first.finish(ReadBack::Yes).unwrap().0, 1);
    assert_eq!(read(&file).unwrap(), [(Bytes::from_static(b"key"), Bytes::from_static(b"first"))]);
    // Somebody put something else where it is written.
    fs::remove_file(&file).unwrap();
    let partial = folder.path().join("dump.partial");
    let writer = Writer::create(&file, &Heading::new(79, 7)).unwrap();
    fs::remove_file(&partial).unwrap();
    fs::write(&partial, "something else").unwrap();
    assert!(writer.finish(ReadBack::No).is_err());
    assert!(!file.exists());
    assert_eq!(fs::read(&partial).unwrap(), b"something else");
}
