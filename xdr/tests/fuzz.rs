//! Seeded mutation of encoded values, through every top-level decoder, attributes, capabilities and the
//! record decoder: nothing panics, loops, or holds more memory than its input warrants.
//!
//! `SLUICE_FUZZ_SECONDS` (default 5) says for how long, `SLUICE_FUZZ_SEED` where to start; a failure prints
//! the seed of its round.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::alloc::{Counting, peak_of};
use common::{CODECS, Dice, samples};
use sluice_xdr::nfs4::{Attributes, fattr4, nfs_resop4};
use sluice_xdr::{Capability, RecordDecoder, Rights, from_bytes};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a decoder may hold for `input` bytes: items are larger in memory than on the wire (an operation's
/// result with an empty body takes eight bytes there), vectors double as they grow, and a round holds the
/// value twice and two encodings.
fn memory_limit(input: usize) -> usize {
    64 * 1024 + input * (4 * size_of::<nfs_resop4>() / 8 + 8)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Damages `value` in one to four places.
fn mutate(value: &mut Vec<u8>, others: &[Bytes], dice: &mut Dice) {
    const EXTREMES: &[u32] =
        &[0, 1, 2, 3, 4, 5, 64, 65, 128, 255, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, u32::MAX, 0x4000_0000];
    for _ in 0..=dice.below(4) {
        let at = dice.below(value.len());
        match dice.below(8) {
            0 => value.truncate(at),
            1 if !value.is_empty() => value[at] ^= 1 << dice.below(8),
            2 if !value.is_empty() => value[at] = dice.next().to_le_bytes()[0],
            3 | 4 if value.len() >= 4 => {
                let word = at.min(value.len() - 4) / 4 * 4;
                let new = if dice.below(2) == 0 { *dice.pick(EXTREMES) } else { dice.word() };
                value[word..word + 4].copy_from_slice(&new.to_be_bytes());
            }
            5 => {
                let to = dice.below(value.len() - at + 1) + at;
                let copy = value[at..to].to_vec();
                value.splice(at..at, copy);
            }
            6 if !others.is_empty() => {
                let other = dice.pick(others);
                let from = dice.below(other.len()) / 4 * 4;
                value.truncate(at / 4 * 4);
                value.extend_from_slice(&other[from..]);
            }
            _ => value.splice(at..at, dice.word().to_be_bytes()).for_each(drop),
        }
    }
    value.truncate(64 * 1024);
}

fn fuzz_decoders(corpus: &[Vec<Bytes>], dice: &mut Dice) {
    let which = dice.below(CODECS.len());
    let (codec, own) = (&CODECS[which], &corpus[which]);
    let mut input = if own.is_empty() { Vec::new() } else { dice.pick(own).to_vec() };
    // Now and then another decoder's bytes.
    let others = if dice.below(8) == 0 { dice.pick(corpus) } else { own };
    mutate(&mut input, others, dice);
    let input = Bytes::from(input);
    let (_, peak) = peak_of(|| drop((codec.round)(&input)));
    assert!(peak <= memory_limit(input.len()), "{}: {peak} bytes for {}: {input:?}", codec.name, input.len());
}

fn fuzz_attributes(corpus: &[Bytes], dice: &mut Dice) {
    let mut input = if corpus.is_empty() { Vec::new() } else { dice.pick(corpus).to_vec() };
    mutate(&mut input, corpus, dice);
    let (_, peak) = peak_of(|| {
        let Ok(value) = from_bytes::<fattr4>(input.clone().into()) else { return };
        let Ok(values) = Attributes::decode(&value) else { return };
        let again = values.encode(&value.attrmask).unwrap();
        assert_eq!(again.attrmask, value.attrmask);
        assert_eq!(Attributes::decode(&again).unwrap(), values);
    });
    let limit = memory_limit(input.len()) + 8 * size_of::<Attributes>();
    assert!(peak <= limit, "{peak} bytes for {}", input.len());
}

fn fuzz_capability(dice: &mut Dice) {
    let key = [7; 32];
    let sealed =
        Capability { rights: Rights::READ, data_file: dice.next(), ..Capability::default() }.seal(&key);
    let mut damaged = sealed.to_vec();
    mutate(&mut damaged, &[], dice);
    let opened = Capability::open(&damaged, |id| (id == 0).then_some(key));
    assert_eq!(opened.is_ok(), damaged == sealed, "{damaged:?}");
}

/// A stream of records in fragments, damaged, arriving in pieces.
fn fuzz_records(dice: &mut Dice) {
    const LIMIT: usize = 8192;
    let mut stream = Vec::new();
    for _ in 0..dice.below(6) {
        let fragments = 1 + dice.below(4);
        for n in 1..=fragments {
            let body = dice.words(dice.clone().below(300));
            let last = if n == fragments { 0x8000_0000 } else { 0 };
            stream.extend_from_slice(&(u32::try_from(body.len()).unwrap() | last).to_be_bytes());
            stream.extend_from_slice(&body);
        }
    }
    mutate(&mut stream, &[], dice);
    let pieces = 1 + dice.below(64);
    let (_, peak) = peak_of(|| {
        let mut decoder = RecordDecoder::new(LIMIT);
        let (mut given, mut rest) = (0, &stream[..]);
        'stream: while !rest.is_empty() {
            let n = (1 + dice.below(stream.len() / pieces + 1)).min(rest.len());
            let buffer = decoder.buffer();
            assert!(buffer.capacity() > buffer.len());
            buffer.extend_from_slice(&rest[..n]);
            rest = &rest[n..];
            loop {
                match decoder.next_record() {
                    Ok(Some(record)) => {
                        assert!(!record.is_empty() && record.len() <= LIMIT);
                        given += record.len();
                    }
                    Ok(None) => break,
                    Err(_) => break 'stream,
                }
            }
            assert!(decoder.pending() <= LIMIT + 4 + n);
        }
        assert!(given <= stream.len());
    });
    assert!(peak <= 64 * 1024 + 4 * LIMIT, "{peak} bytes for a limit of {LIMIT}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long to go on is the one thing here that a clock decides")]
fn mutated_input_is_survived() {
    let first = setting("SLUICE_FUZZ_SEED", 1);
    let duration = Duration::from_secs(setting("SLUICE_FUZZ_SECONDS", 5));
    let mut dice = Dice::new(first);
    let corpus: Vec<_> = CODECS.iter().map(|codec| samples(codec, &mut dice, 400)).collect();
    let attributes = attribute_corpus(&mut dice);
    let (start, mut seed, mut runs) = (Instant::now(), first, 0_u64);
    while start.elapsed() < duration {
        let result = std::panic::catch_unwind(|| {
            let mut dice = Dice::new(seed);
            for _ in 0..200 {
                match dice.below(8) {
                    0 => fuzz_attributes(&attributes, &mut dice),
                    1 => fuzz_records(&mut dice),
                    2 => fuzz_capability(&mut dice),
                    _ => fuzz_decoders(&corpus, &mut dice),
                }
            }
        });
        if let Err(panic) = result {
            println!("reproduce with SLUICE_FUZZ_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
        runs += 200;
        seed += 1;
    }
    println!("{runs} inputs, seeds {first} to {seed}");
    assert!(runs >= 1000, "only {runs} inputs in {duration:?}");
}

/// Attribute sets whose values are right for their masks.
fn attribute_corpus(dice: &mut Dice) -> Vec<Bytes> {
    use sluice_xdr::nfs4::bitmap4;
    let mut found = Vec::new();
    for _ in 0..2000 {
        let attrmask: bitmap4 = (0..4).map(|_| dice.below(87) as u32).collect();
        // The values' length is not known: try what is there, word by word.
        let words = dice.words(40);
        for end in (0..=words.len()).step_by(4) {
            let value = fattr4 { attrmask, attr_vals: words.slice(..end) };
            if Attributes::decode(&value).is_ok() {
                found.push(sluice_xdr::to_bytes(&value).unwrap());
                break;
            }
        }
    }
    assert!(found.len() > 200, "only {} attribute sets", found.len());
    found
}
