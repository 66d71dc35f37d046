//! Frames on a link: what stands before every piece of a message, so that a receiver knows what it is before it takes it.
//!
//! A message (one [`Step::Send`](super::plan::Step)) is one frame, or several where it is long; an empty message is one
//! frame without a body. Each frame carries the full descriptor of the operation. Between frames a link may carry a
//! [`Notice`] of failure instead; bodies are bounded, so that a rank which fails can always get to that point soon.

use serde::{Deserialize, Serialize};

use super::descriptor::{self, Descriptor, Operation};
use crate::transport::{LinkError, Transport};

/// Bytes of a frame's head.
pub(super) const HEAD: usize = 64;
/// The longest body of a frame; a multiple of every element size.
pub(super) const BODY: usize = 256 << 10;
/// The longest body of a notice.
const NOTICE: usize = 4 << 10;

const MAGIC: [u8; 4] = *b"WWf1";
const DATA: u8 = 0;
const TOLD: u8 = 1;

/// The head of a piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) descriptor: Descriptor,
    /// Bytes of the whole message.
    pub(super) message: u64,
    /// Bytes of this frame's body.
    pub(super) body: u32,
}

impl Head {
    pub(super) fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = DATA;
        bytes[8..12].copy_from_slice(&self.body.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.message.to_le_bytes());
        bytes[20..20 + descriptor::BYTES].copy_from_slice(&self.descriptor.encode());
        bytes
    }
}

/// Why a rank gave up, as it tells the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notice {
    /// The rank that found it.
    pub(super) by: usize,
    pub(super) reason: Reason,
    /// Whom it holds responsible, or waited for.
    pub(super) peer: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reason {
    TimedOut { milliseconds: u64 },
    Died { how: String },
    Aborted { reason: String },
    Mismatch { difference: String },
    Other { what: String },
}

impl Notice {
    /// The notice as a frame.
    pub(super) fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_vec(self).ok().filter(|body| body.len() <= NOTICE).unwrap_or_default();
        let mut bytes = vec![0; HEAD];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = TOLD;
        bytes[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend(body);
        bytes
    }
}

/// What stands next on a link.
#[derive(Clone, Debug)]
pub(super) enum Next {
    /// Nothing whole yet.
    Nothing,
    /// A frame of a message, whose body follows once it is [opened](Link::open).
    Data(Head),
    /// The peer has given up. Nothing comes after it.
    Notice(Notice),
    /// Bytes that no rank of this version sends.
    Garbage,
}

/// The state of the link to one peer, which outlives operations.
pub(super) struct Link {
    out_head: [u8; HEAD],
    /// Bytes of `out_head` sent; `HEAD` between frames and within bodies.
    out_head_sent: usize,
    /// Bytes of the current body still to send.
    out_body: usize,
    in_head: [u8; HEAD],
    in_head_have: usize,
    /// The body of the current frame is being taken.
    in_open: bool,
    in_body: usize,
    notice: Vec<u8>,
    /// Ranks that a notice may speak of.
    world: usize,
    /// The pass in which an earlier message to (from) this peer was still on its way: later ones must wait.
    pub(super) out_busy: u64,
    pub(super) in_busy: u64,
    /// Point-to-point messages so far.
    pub(super) points_sent: u64,
    pub(super) points_received: u64,
}

impl Link {
    pub(super) fn new(world: usize) -> Self {
        Self {
            out_head: [0; HEAD],
            out_head_sent: HEAD,
            out_body: 0,
            in_head: [0; HEAD],
            in_head_have: 0,
            in_open: false,
            in_body: 0,
            notice: Vec::new(),
            world,
            out_busy: 0,
            in_busy: 0,
            points_sent: 0,
            points_received: 0,
        }
    }

    /// Whether a frame is partly sent.
    pub(super) fn in_frame(&self) -> bool {
        self.out_head_sent < HEAD || self.out_body > 0
    }

    /// Begins a frame; the last one must be complete.
    pub(super) fn begin(&mut self, head: &Head) {
        debug_assert!(!self.in_frame());
        self.out_head = head.encode();
        self.out_head_sent = 0;
        self.out_body = head.body as usize;
    }

    /// Sends on with the current frame; `rest` begins with the rest of its body. Gives the bytes of body taken.
    pub(super) fn push(
        &mut self,
        transport: &mut dyn Transport,
        peer: usize,
        rest: &[u8],
        moved: &mut bool,
    ) -> Result<usize, LinkError> {
        while self.out_head_sent < HEAD {
            let sent = transport.try_send(peer, &self.out_head[self.out_head_sent..])?;
            if sent == 0 {
                return Ok(0);
            }
            *moved = true;
            self.out_head_sent += sent;
        }
        let mut taken = 0;
        while self.out_body > 0 {
            let sent = transport.try_send(peer, &rest[taken..taken + self.out_body])?;
            if sent == 0 {
                break;
            }
            *moved = true;
            taken += sent;
            self.out_body -= sent;
        }
        Ok(taken)
    }

    /// Looks at what stands next, between bodies.
    pub(super) fn next(&mut self, transport: &mut dyn Transport, peer: usize) -> Result<Next, LinkError> {
        while self.in_head_have < HEAD {
            let got = transport.try_recv(peer, &mut self.in_head[self.in_head_have..])?;
            if got == 0 {
                return Ok(Next::Nothing);
            }
            self.in_head_have += got;
        }
        let head = &self.in_head;
        let body = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if head[..4] != MAGIC {
            return Ok(Next::Garbage);
        }
        if head[4] == TOLD {
            return self.next_notice(transport, peer, body as usize);
        }
        let message = u64::from_le_bytes(std::array::from_fn(|i| head[12 + i]));
        let described = std::array::from_fn(|i| head[20 + i]);
        match Descriptor::decode(&described) {
            Some(descriptor) if head[4] == DATA => Ok(Next::Data(Head { descriptor, message, body })),
            _ => Ok(Next::Garbage),
        }
    }

    fn next_notice(&mut self, transport: &mut dyn Transport, peer: usize, body: usize) -> Result<Next, LinkError> {
        if body > NOTICE {
            return Ok(Next::Garbage);
        }
        let mut piece = [0; 256];
        while self.notice.len() < body {
            let want = piece.len().min(body - self.notice.len());
            let got = transport.try_recv(peer, &mut piece[..want])?;
            if got == 0 {
                return Ok(Next::Nothing);
            }
            self.notice.extend_from_slice(&piece[..got]);
        }
        let notice = serde_json::from_slice(&self.notice).ok();
        let notice = notice.filter(|notice: &Notice| notice.by.max(notice.peer.unwrap_or(0)) < self.world);
        Ok(notice.map_or(Next::Garbage, Next::Notice))
    }

    /// Takes the head that [`next`](Self::next) showed, so that its body can be pulled.
    pub(super) fn open(&mut self, head: &Head) {
        self.in_open = true;
        self.in_body = head.body as usize;
        self.close_if_empty();
    }

    /// Whether a head stands there that nothing has taken.
    pub(super) fn holds_head(&self) -> bool {
        self.in_head_have == HEAD && !self.in_open
    }

    pub(super) fn is_open(&self) -> bool {
        self.in_open
    }

    /// Bytes of the open body still to come.
    pub(super) fn body_left(&self) -> usize {
        self.in_body
    }

    /// Bytes of the open body into `into`, which is no longer than what is left of it.
    pub(super) fn pull(
        &mut self,
        transport: &mut dyn Transport,
        peer: usize,
        into: &mut [u8],
    ) -> Result<usize, LinkError> {
        let got = transport.try_recv(peer, into)?;
        self.in_body -= got;
        self.close_if_empty();
        Ok(got)
    }

    fn close_if_empty(&mut self) {
        if self.in_body == 0 {
            self.in_open = false;
            self.in_head_have = 0;
        }
    }

    /// Throws away what is left of a body and shows what stands next; a head that it shows is taken, its body thrown away
    /// by the next call. It stops for good before a point-to-point message.
    pub(super) fn discard(&mut self, transport: &mut dyn Transport, peer: usize) -> Result<Next, LinkError> {
        let mut bin = [0; 4096];
        while self.in_open {
            let want = self.in_body.min(bin.len());
            if self.pull(transport, peer, &mut bin[..want])? == 0 {
                return Ok(Next::Nothing);
            }
        }
        let next = self.next(transport, peer)?;
        match &next {
            // Its sender must not take it for received.
            Next::Data(head) if head.descriptor.operation == Operation::Point => Ok(Next::Nothing),
            Next::Data(head) => {
                self.open(head);
                Ok(next)
            }
            _ => Ok(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{TransportKind, Want};

    /// A link on which bytes have come.
    struct Come(Vec<u8>);

    impl Transport for Come {
        fn kind(&self) -> TransportKind {
            TransportKind::Tcp
        }
        fn address(&self, _peer: usize) -> String {
            String::new()
        }
        fn try_send(&mut self, _peer: usize, bytes: &[u8]) -> Result<usize, LinkError> {
            Ok(bytes.len())
        }
        fn try_recv(&mut self, _peer: usize, into: &mut [u8]) -> Result<usize, LinkError> {
            let count = into.len().min(self.0.len());
            into[..count].copy_from_slice(&self.0[..count]);
            self.0.drain(..count);
            Ok(count)
        }
        fn park(&mut self, _wanted: &[Want], _timeout: std::time::Duration) {}
    }

    #[test]
    fn a_notice_of_ranks_that_do_not_exist_is_garbage() {
        let notice = |by, peer| Notice { by, peer, reason: Reason::TimedOut { milliseconds: u64::MAX } };
        let heard = |notice: Notice| Link::new(3).next(&mut Come(notice.encode()), 1).expect("it has come");
        for (by, peer) in [(2, None), (0, Some(2))] {
            assert!(matches!(heard(notice(by, peer)), Next::Notice(same) if same == notice(by, peer)));
        }
        for (by, peer) in [(3, None), (0, Some(3)), (usize::MAX, Some(usize::MAX))] {
            assert!(matches!(heard(notice(by, peer)), Next::Garbage), "{by} {peer:?}");
        }
    }

    #[test]
    fn bytes_that_no_rank_sends_are_garbage_and_never_a_panic() {
        let descriptor = Descriptor {
            operation: Operation::Barrier,
            dtype: warpweft_device::DType::U8,
            op: None,
            algorithm: crate::Algorithm::Direct,
            root: None,
            count: 0,
            counts: 0,
            sequence: 1,
        };
        let right = Head { descriptor, message: 0, body: 0 }.encode();
        // Every byte of the head in turn with every value: a head that is still one may come, nothing else.
        for at in 0..HEAD {
            for value in 0..=255 {
                let mut bytes = right.to_vec();
                bytes[at] = value;
                let next = Link::new(2).next(&mut Come(bytes), 1).expect("it has come");
                let told = at == 4 && value == TOLD;
                assert!(matches!(next, Next::Data(_) | Next::Garbage) || told, "byte {at} = {value}: {next:?}");
                assert!(at >= 5 || value == right[at] || !matches!(next, Next::Data(_)), "byte {at} = {value}");
            }
        }
    }
}
