//! What a rank says about the operation that it is in, so that ranks which disagree find out before a byte is written.

use warpweft_device::DType;

use super::Algorithm;
use crate::reduce::Op;

/// The operations, as they stand in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AllReduce,
    AllGather,
    AllGatherV,
    ReduceScatter,
    ReduceScatterV,
    Broadcast,
    AllToAll,
    AllToAllV,
    Barrier,
    Point,
}

impl Operation {
    const ALL: [(Operation, &'static str); 10] = [
        (Operation::AllReduce, "all_reduce"),
        (Operation::AllGather, "all_gather"),
        (Operation::AllGatherV, "all_gather_v"),
        (Operation::ReduceScatter, "reduce_scatter"),
        (Operation::ReduceScatterV, "reduce_scatter_v"),
        (Operation::Broadcast, "broadcast"),
        (Operation::AllToAll, "all_to_all"),
        (Operation::AllToAllV, "all_to_all_v"),
        (Operation::Barrier, "barrier"),
        (Operation::Point, "send/recv"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).map(|entry| entry.0)
    }
}

/// Everything on which ranks must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) operation: Operation,
    pub(crate) dtype: DType,
    pub(crate) op: Option<Op>,
    /// Never `Auto`.
    pub(crate) algorithm: Algorithm,
    pub(crate) root: Option<u32>,
    /// Elements of the call; of one part for those with parts; 0 where each pair has its own count.
    pub(crate) count: u64,
    /// A hash of the listed counts; 0 without.
    pub(crate) counts: u64,
    /// The how-manieth collective of the communicator, or message of the link.
    pub(crate) sequence: u64,
}

/// The bytes of an encoded descriptor.
pub(crate) const BYTES: usize = 40;

impl Descriptor {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = self.operation as u8;
        bytes[1] = self.dtype as u8;
        bytes[2] = self.op.map_or(0, |op| 1 + op as u8);
        bytes[3] = self.algorithm as u8;
        bytes[4..8].copy_from_slice(&self.root.unwrap_or(u32::MAX).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.count.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.counts.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// `None` for bytes that no rank of this version sends.
    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let root = u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i]));
        Some(Self {
            operation: Operation::from_code(bytes[0])?,
            dtype: *DType::ALL.get(usize::from(bytes[1]))?,
            op: match bytes[2] {
                0 => None,
                code => Some(*Op::ALL.get(usize::from(code - 1))?),
            },
            algorithm: *Algorithm::ALL.get(usize::from(bytes[3]))?,
            root: (root != u32::MAX).then_some(root),
            count: word(8),
            counts: word(16),
            sequence: word(24),
        })
    }

    /// The fields that differ, with the values here and there; `None` where all agree.
    pub(crate) fn difference(&self, peer: &Descriptor) -> Option<String> {
        let mut fields = Vec::new();
        let mut field = |name: &str, here: String, there: String| {
            if here != there {
                fields.push(format!("{name} {here} here, {there} there"));
            }
        };
        field("operation", self.operation.name().into(), peer.operation.name().into());
        if self.operation == peer.operation {
            field("element type", self.dtype.to_string(), peer.dtype.to_string());
            let op = |op: Option<Op>| op.map_or("none".into(), |op| op.to_string());
            field("op", op(self.op), op(peer.op));
            let root = |root: Option<u32>| root.map_or("none".into(), |root| root.to_string());
            field("root", root(self.root), root(peer.root));
            field("count", self.count.to_string(), peer.count.to_string());
            if self.count == peer.count {
                field("counts (hash)", format!("{:016x}", self.counts), format!("{:016x}", peer.counts));
            }
        }
        // An algorithm follows from the size unless somebody chose it: it is news only where nothing else differs.
        if fields.is_empty() && self.algorithm != peer.algorithm {
            fields.push(format!("algorithm {} here, {} there", self.algorithm, peer.algorithm));
        }
        if fields.is_empty() && self.sequence != peer.sequence {
            fields.push(format!("{} number {} here, {} there", self.operation.name(), self.sequence, peer.sequence));
        }
        (!fields.is_empty()).then(|| fields.join(", "))
    }
}

/// FNV-1a over the counts: enough to tell apart two lists that differ by mistake.
pub(crate) fn hash_counts(counts: &[usize]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in counts.iter().flat_map(|&count| (count as u64).to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Descriptor = Descriptor {
        operation: Operation::AllReduce,
        dtype: DType::F32,
        op: Some(Op::Sum),
        algorithm: Algorithm::Ring,
        root: None,
        count: 409_600,
        counts: 0,
        sequence: 7,
    };

    #[test]
    fn every_field_survives_and_every_difference_is_named() {
        assert_eq!(Descriptor::decode(&ONE.encode()), Some(ONE));
        assert_eq!(ONE.difference(&ONE), None);
        let others = [
            (Descriptor { count: 409_598, ..ONE }, "count 409600 here, 409598 there"),
            (Descriptor { dtype: DType::BF16, ..ONE }, "element type f32 here, bf16 there"),
            (Descriptor { op: Some(Op::Max), ..ONE }, "op sum here, max there"),
            (Descriptor { root: Some(3), ..ONE }, "root none here, 3 there"),
            (Descriptor { algorithm: Algorithm::Direct, ..ONE }, "algorithm ring here, direct there"),
            (Descriptor { operation: Operation::Barrier, ..ONE }, "operation all_reduce here, barrier there"),
            (Descriptor { counts: 1, ..ONE }, "counts (hash)"),
            (Descriptor { sequence: 8, ..ONE }, "all_reduce number 7 here, 8 there"),
        ];
        for (other, said) in others {
            assert_eq!(Descriptor::decode(&other.encode()), Some(other));
            assert!(ONE.difference(&other).is_some_and(|text| text.contains(said)), "{other:?}");
        }
    }

    #[test]
    fn codes_are_the_order_of_the_tables() {
        for (index, (operation, _)) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
        for (index, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, index);
        }
        let mut bytes = ONE.encode();
        bytes[1] = 12;
        assert_eq!(Descriptor::decode(&bytes), None);
    }
}
