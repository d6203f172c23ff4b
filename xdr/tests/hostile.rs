//! Input made to cost memory or time: each is refused at once and costs next to nothing.

mod common;

use bytes::Bytes;
use common::alloc::{Counting, peak_of};
use sluice_xdr::nfs4::{BACKCHANNEL_CTL4args, COMPOUND4args, CREATE_SESSION4args, bitmap4, fattr4};
use sluice_xdr::record::MAX_FRAGMENTS;
use sluice_xdr::rpc::{authsys_parms, rpc_msg};
use sluice_xdr::{Decode, DecodeError, Reader, RecordDecoder, RecordError, from_bytes, nfs3};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The record limit of a data server.
const LIMIT: usize = 1024 * 1024 + 4096;

fn words(words: &[u32]) -> Bytes {
    words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>().into()
}

/// Decoding `input` fails with `error` and holds at most a page.
#[track_caller]
fn refused<T: Decode + std::fmt::Debug>(input: Bytes, error: DecodeError) {
    let (result, peak) = peak_of(|| from_bytes::<T>(input));
    assert_eq!(result.err(), Some(error));
    assert!(peak <= 4096, "{peak} bytes");
}

#[test]
fn a_mark_of_a_gibibyte_costs_nothing() {
    for mark in [0x4000_0000_u32, 0xc000_0000, 0x7fff_ffff, 0xffff_ffff, 0x8010_1001] {
        let (result, peak) = peak_of(|| {
            let mut decoder = RecordDecoder::new(LIMIT);
            decoder.buffer().extend_from_slice(&mark.to_be_bytes());
            decoder.next_record()
        });
        let announced = (mark & 0x7fff_ffff) as usize;
        assert_eq!(result, Err(RecordError::TooLong { announced, limit: LIMIT }));
        assert!(peak <= 32 * 1024, "{peak} bytes");
    }
}

/// A mark within the limit, and then nothing: room is made for what arrived, not for what was promised.
#[test]
fn a_promise_is_not_data() {
    let (_, peak) = peak_of(|| {
        let mut decoder = RecordDecoder::new(LIMIT);
        decoder.buffer().extend_from_slice(&(0x8000_0000 | (1024 * 1024_u32)).to_be_bytes());
        assert_eq!(decoder.next_record(), Ok(None));
        // As much as there is free room, so that the decoder has to decide on more.
        for _ in 0..2 {
            let buffer = decoder.buffer();
            let free = buffer.capacity() - buffer.len();
            buffer.extend_from_slice(&vec![0; free]);
            assert_eq!(decoder.next_record(), Ok(None));
        }
        let _ = decoder.buffer();
    });
    assert!(peak <= 160 * 1024, "{peak} bytes");
}

#[test]
fn endless_fragments_end() {
    for body in [0_usize, 1, 4] {
        let (fed, peak) = peak_of(|| {
            let mut decoder = RecordDecoder::new(LIMIT);
            for fed in 0..10 * MAX_FRAGMENTS {
                let buffer = decoder.buffer();
                buffer.extend_from_slice(&u32::try_from(body).unwrap_or(0).to_be_bytes());
                buffer.extend_from_slice(&[0; 4][..body]);
                match decoder.next_record() {
                    Ok(None) => {}
                    Err(RecordError::Fragments) => return fed,
                    other => panic!("{other:?}"),
                }
            }
            0
        });
        assert_eq!(fed, MAX_FRAGMENTS);
        assert!(peak <= 64 * 1024, "{peak} bytes");
    }
}

/// Fragments that are each within the limit and together are not.
#[test]
fn fragments_add_up() {
    let (result, peak) = peak_of(|| {
        let mut decoder = RecordDecoder::new(LIMIT);
        loop {
            let buffer = decoder.buffer();
            buffer.extend_from_slice(&(100_000_u32).to_be_bytes());
            buffer.extend_from_slice(&[0; 100_000]);
            match decoder.next_record() {
                Ok(None) => {}
                other => return other,
            }
        }
    });
    assert_eq!(result, Err(RecordError::TooLong { announced: 1_100_000, limit: LIMIT }));
    assert!(peak <= 2 * LIMIT, "{peak} bytes");
}

#[test]
fn an_empty_record_is_refused() {
    let mut decoder = RecordDecoder::new(LIMIT);
    decoder.feed(&0x8000_0000_u32.to_be_bytes());
    assert_eq!(decoder.next_record(), Err(RecordError::Empty));
}

#[test]
fn a_length_of_0xfffffff0() {
    // In an RPC credential, whose maximum is known.
    let call = words(&[1, 0, 2, 100_003, 3, 6, 1, 0xffff_fff0]);
    refused::<rpc_msg>(call, DecodeError::TooLong { length: 0xffff_fff0, maximum: 400 });
    // In data that has none.
    let mut write = vec![4, 0x0101_0101, 0, 0, 4, 0, 0xffff_fff0];
    refused::<nfs3::WRITE3args>(words(&write), DecodeError::Short);
    write.extend([0; 1000]);
    refused::<nfs3::WRITE3args>(words(&write), DecodeError::Short);
    // In a filehandle.
    refused::<nfs3::GETATTR3args>(
        words(&[0xffff_fff0]),
        DecodeError::TooLong { length: 0xffff_fff0, maximum: 64 },
    );
    // In attributes.
    refused::<fattr4>(words(&[1, 16, 0xffff_fff0, 0]), DecodeError::Short);
    refused::<bitmap4>(words(&[0xffff_fff0, 0]), DecodeError::TooLong { length: 0xffff_fff0, maximum: 8 });
}

#[test]
fn a_gid_count_of_4294967295() {
    let credential = words(&[0, 0, 0, 0, u32::MAX]);
    refused::<authsys_parms>(credential, DecodeError::TooLong { length: u32::MAX, maximum: 16 });
    refused::<authsys_parms>(words(&[0, 0, 0, 0, 17]), DecodeError::TooLong { length: 17, maximum: 16 });
    refused::<authsys_parms>(words(&[0, 0, 0, 0, 16, 1, 2]), DecodeError::Short);
}

#[test]
fn callback_flavours_without_end() {
    let too_many = DecodeError::TooLong { length: 17, maximum: 16 };
    let session = [[0; 19].as_slice(), &[17], &[0; 17]].concat();
    refused::<CREATE_SESSION4args>(words(&session), too_many);
    refused::<BACKCHANNEL_CTL4args>(words(&[[0, 17].as_slice(), &[0; 17]].concat()), too_many);
}

#[test]
fn an_array_count_beyond_the_input() {
    // 2^32-1 operations; then as many as there are bytes, of which each takes at least four.
    refused::<COMPOUND4args>(words(&[0, 1, u32::MAX]), DecodeError::Short);
    refused::<COMPOUND4args>(words(&[0, 1, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), DecodeError::Short);
    refused::<Vec<u32>>(words(&[3, 0, 0]), DecodeError::Short);
    refused::<Vec<()>>(words(&[u32::MAX]), DecodeError::Short);
}

/// A count that the input could fill, and a first item that is wrong: room is made for items that came.
#[test]
fn an_array_that_fails_at_once() {
    let mut input = vec![0, 1, 250_000, 9999];
    input.resize(250_003, 0);
    let unknown = DecodeError::BadDiscriminant { union: "nfs_argop4", value: 9999 };
    refused::<COMPOUND4args>(words(&input), unknown);
}

#[test]
fn truncated_opaques() {
    for length in 1..=9_u32 {
        let whole: Bytes = [&length.to_be_bytes()[..], &[0; 12]].concat().into();
        let padded = 4 + (length as usize).next_multiple_of(4);
        for cut in 0..padded {
            refused::<Bytes>(whole.slice(..cut), DecodeError::Short);
        }
        assert_eq!(from_bytes::<Bytes>(whole.slice(..padded)).map(|b| b.len()), Ok(length as usize));
    }
    refused::<[u8; 6]>(Bytes::from_static(&[0; 7]), DecodeError::Short);
    refused::<rpc_msg>(Bytes::from_static(&[0, 0, 0]), DecodeError::Short);
}

/// The largest COMPOUND of the smallest operations that fits a record: decoded whole, it costs what its
/// operations cost in memory, and no more than twice.
#[test]
fn a_record_full_of_tiny_operations() {
    let operations = (LIMIT - 12) / 4;
    let mut input = vec![0, 1, u32::try_from(operations).unwrap_or(0)];
    input.resize(operations + 3, 10); // OP_GETFH
    let (result, peak) = peak_of(|| from_bytes::<COMPOUND4args>(words(&input)).map(|c| c.argarray.len()));
    assert_eq!(result, Ok(operations));
    let each = size_of::<sluice_xdr::nfs4::nfs_argop4>();
    assert!(peak <= 4 * operations * each, "{peak} bytes for {operations} operations of {each}");
    // A server decodes one at a time and holds one at a time.
    let input = words(&input);
    let ((), peak) = peak_of(|| {
        let mut r = Reader::new(input);
        for _ in 0..3 {
            let _ = r.u32();
        }
        while r.remaining() > 0 {
            assert!(sluice_xdr::nfs4::nfs_argop4::decode(&mut r).is_ok());
        }
    });
    assert!(peak <= 4096, "{peak} bytes");
}
