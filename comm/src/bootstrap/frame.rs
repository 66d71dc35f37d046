//! The messages between a rank and the rendezvous, after the hello: length 4, kind 1, fields. Little-endian.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde::{Deserialize, Serialize};

use crate::Verdict;

/// A rank's contribution to an exchange is no longer than this.
pub(super) const MOST_PART_BYTES: usize = 1 << 20;
/// No message from the rendezvous is longer than this: contributions of all ranks together.
const MOST_BYTES: usize = 256 << 20;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A rank's part of an exchange.
    Gather { round: u64, timeout_ms: u64, part: Vec<u8> },
    /// All parts of an exchange.
    Gathered { round: u64, parts: Vec<Vec<u8>> },
    /// The exchange failed: these ranks did not come.
    Missing { round: u64, ranks: Vec<usize>, after_ms: u64 },
    /// From the rendezvous: something ended the job. From a rank: it aborts, or panics.
    Verdict(Verdict),
    /// The sender leaves in order.
    Goodbye,
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
}

/// The frames whose fields are few and short.
#[derive(Serialize, Deserialize)]
enum Small {
    Missing { round: u64, ranks: Vec<usize>, after_ms: u64 },
    Died { rank: usize, how: String },
    Aborted { by: usize, reason: String },
    Orphaned { how: String },
    Goodbye,
    Ping,
    Pong,
}

const SMALL: u8 = 0;
const GATHER: u8 = 1;
const GATHERED: u8 = 2;

impl Frame {
    /// The frame as it is sent.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        match self {
            Frame::Gather { round, timeout_ms, part } => {
                bytes.push(GATHER);
                bytes.extend_from_slice(&round.to_le_bytes());
                bytes.extend_from_slice(&timeout_ms.to_le_bytes());
                bytes.extend_from_slice(part);
            }
            Frame::Gathered { round, parts } => {
                bytes.push(GATHERED);
                bytes.extend_from_slice(&round.to_le_bytes());
                for part in parts {
                    bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
                    bytes.extend_from_slice(part);
                }
            }
            Frame::Missing { round, ranks, after_ms } => {
                small(&mut bytes, &Small::Missing { round: *round, ranks: ranks.clone(), after_ms: *after_ms });
            }
            Frame::Verdict(verdict) => small(
                &mut bytes,
                &match verdict.clone() {
                    Verdict::Died { rank, how } => Small::Died { rank, how },
                    Verdict::Aborted { by, reason } => Small::Aborted { by, reason },
                    Verdict::Orphaned { how } => Small::Orphaned { how },
                },
            ),
            Frame::Goodbye => small(&mut bytes, &Small::Goodbye),
            Frame::Ping => small(&mut bytes, &Small::Ping),
            Frame::Pong => small(&mut bytes, &Small::Pong),
        }
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&kind, mut rest) = bytes.split_first()?;
        match kind {
            GATHER => {
                let (round, timeout_ms) = (number(&mut rest)?, number(&mut rest)?);
                (rest.len() <= MOST_PART_BYTES).then(|| Frame::Gather { round, timeout_ms, part: rest.to_vec() })
            }
            GATHERED => {
                let round = number(&mut rest)?;
                let mut parts = Vec::new();
                while !rest.is_empty() {
                    let (length, after) = rest.split_first_chunk::<4>()?;
                    let (part, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                    parts.push(part.to_vec());
                    rest = after;
                }
                Some(Frame::Gathered { round, parts })
            }
            SMALL => Some(match serde_json::from_slice(rest).ok()? {
                Small::Missing { round, ranks, after_ms } => Frame::Missing { round, ranks, after_ms },
                Small::Died { rank, how } => Frame::Verdict(Verdict::Died { rank, how }),
                Small::Aborted { by, reason } => Frame::Verdict(Verdict::Aborted { by, reason }),
                Small::Orphaned { how } => Frame::Verdict(Verdict::Orphaned { how }),
                Small::Goodbye => Frame::Goodbye,
                Small::Ping => Frame::Ping,
                Small::Pong => Frame::Pong,
            }),
            _ => None,
        }
    }
}

fn small(bytes: &mut Vec<u8>, frame: &Small) {
    bytes.push(SMALL);
    // Numbers and text always serialise; a failure would leave an empty frame, which the other side refuses.
    bytes.extend(serde_json::to_vec(frame).unwrap_or_default());
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (first, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    Some(u64::from_le_bytes(*first))
}

/// Sends a frame.
pub(super) fn send(mut stream: &TcpStream, frame: &Frame) -> std::io::Result<()> {
    stream.write_all(&frame.encode())
}

/// Receives a frame; `Ok(None)` when the other side has closed between two frames.
fn receive(mut stream: &TcpStream, most_bytes: usize) -> std::io::Result<Option<Frame>> {
    let mut length = [0; 4];
    let mut have = 0;
    while have < 4 {
        match stream.read(&mut length[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => have += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let bytes = u32::from_le_bytes(length) as usize;
    let invalid = |what: String| std::io::Error::new(std::io::ErrorKind::InvalidData, what);
    if bytes > most_bytes {
        return Err(invalid(format!("a message of {bytes} bytes, where at most {most_bytes} are allowed")));
    }
    // Grows with what really comes, not with what was announced.
    let mut body = Vec::new();
    stream.take(bytes as u64).read_to_end(&mut body)?;
    if body.len() < bytes {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Frame::decode(&body).map(Some).ok_or_else(|| invalid(format!("a message of {bytes} bytes that has no meaning")))
}

/// Receives from a rank.
pub(super) fn receive_from_rank(stream: &TcpStream) -> std::io::Result<Option<Frame>> {
    receive(stream, MOST_PART_BYTES + 64)
}

/// Receives from the rendezvous.
pub(super) fn receive_from_rendezvous(stream: &TcpStream) -> std::io::Result<Option<Frame>> {
    receive(stream, MOST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_comes_back_and_every_cut_is_refused() {
        let frames = [
            Frame::Gather { round: 7, timeout_ms: 8, part: vec![1, 2, 3] },
            Frame::Gathered { round: 9, parts: vec![vec![], vec![4; 300], vec![5]] },
            Frame::Missing { round: 1, ranks: vec![2, 3], after_ms: 4 },
            Frame::Verdict(Verdict::Died { rank: 1, how: "x".into() }),
            Frame::Verdict(Verdict::Aborted { by: 2, reason: "\"y\"".into() }),
            Frame::Verdict(Verdict::Orphaned { how: "z".into() }),
            Frame::Goodbye,
            Frame::Ping,
            Frame::Pong,
        ];
        for frame in frames {
            let bytes = frame.encode();
            assert_eq!(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize, bytes.len() - 4);
            assert_eq!(Frame::decode(&bytes[4..]), Some(frame.clone()));
            // A shorter part or fewer parts are a valid frame, but never the same one; nothing panics.
            (4..bytes.len()).for_each(|end| assert_ne!(Frame::decode(&bytes[4..end]), Some(frame.clone())));
        }
        let oversized = [&[GATHERED][..], &[0; 8], &u32::MAX.to_le_bytes(), b"abc"].concat();
        assert_eq!(Frame::decode(&oversized), None);
        assert_eq!(Frame::decode(&[9]), None);
    }
}
