//! Context parallelism: each rank has a part of the tokens of every sequence, and attention brings them together.
//!
//! Two ways, chosen at run time. [`Method::Ring`]: keys and values go round while each rank's queries stay (Liu 2023, arXiv
//! 2310.01889), tokens cut in zigzag so that causal work is even. [`Method::Ulysses`]: an exchange after which each rank
//! has all tokens of some heads, and one back (Jacobs 2023, arXiv 2309.14509).
//!
//! Everything else of a model works on rows, whose positions are [`Context::positions`]. What lies between the parts of a
//! sum is f32 in both, so that the result rounds once, as that of one rank does; sums have a fixed order.

mod columns;
mod cut;
mod documents;
mod held;
mod reach;
mod ring;
mod sent;
mod ulysses;

use std::sync::Arc;

use warpweft_comm::Communicator;
use warpweft_device::{Buffer, Device, DeviceError, Element, Float, Stream, View, ViewMut};
use warpweft_kernels::attention;

use crate::TrainError;
use crate::data::Documents;
use crate::memory::{Account, Class, Entered, Held};

pub use cut::Cut;
pub(crate) use documents::Call;
pub(crate) use held::held_bytes;
pub(crate) use sent::sent_bytes;

/// How attention brings the parts of a sequence together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// Keys and values travel from rank to rank.
    #[default]
    Ring,
    /// Tokens are exchanged for heads.
    Ulysses,
}

/// Heads that an exchange cannot share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// Query heads.
    #[error(
        "{heads} query heads do not divide by {cp} context-parallel ranks (cp), which the exchange of tokens for heads (ulysses) needs; use the ring, or a divisor of {heads}"
    )]
    Heads {
        /// Query heads of a rank.
        heads: usize,
        /// Ranks.
        cp: usize,
    },
    /// Key/value heads.
    #[error(
        "{kv_heads} key/value heads and {cp} context-parallel ranks (cp): for the exchange of tokens for heads (ulysses) one must divide the other; use the ring, or another cp"
    )]
    KvHeads {
        /// Key/value heads of a rank.
        kv_heads: usize,
        /// Ranks.
        cp: usize,
    },
}

/// The attention of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes<'a> {
    /// Sequences.
    pub batch: usize,
    /// Query heads (H).
    pub heads: usize,
    /// Key/value heads (G).
    pub kv_heads: usize,
    /// Elements of a head (D).
    pub head_size: usize,
    /// Mask and scale.
    pub options: attention::Options,
    /// The documents of each sequence, where several lie side by side; empty where each is one. Attention is causal then.
    pub documents: &'a [Documents],
}

impl Sizes<'_> {
    /// Elements of a packed row.
    fn row(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_size
    }

    /// Elements of a row of queries.
    fn queries(&self) -> usize {
        self.heads * self.head_size
    }

    /// Elements of a row of keys, or of values.
    fn keys(&self) -> usize {
        self.kv_heads * self.head_size
    }
}

/// A rank's part of sequences of a fixed length.
pub struct Context {
    group: Arc<Communicator>,
    method: Method,
    /// Tokens of a whole sequence.
    tokens: usize,
    /// By rank: how many of its tokens each of this rank's tokens may look at.
    seen: Vec<Buffer<u32>>,
    /// Where what travels is entered.
    account: Account,
}

impl Context {
    /// The part of this rank of `group` in sequences of `tokens` tokens.
    ///
    /// # Errors
    /// No memory.
    pub fn new(device: &Device, group: Arc<Communicator>, method: Method, tokens: usize) -> Result<Self, TrainError> {
        let (rank, cp) = (group.rank(), group.world());
        let own = method.cut().positions(tokens, cp, rank);
        let seen = (0..cp).map(|other| {
            let theirs = method.cut().positions(tokens, cp, other);
            let seen: Vec<u32> = own.iter().map(|own| theirs.partition_point(|theirs| theirs <= own) as u32).collect();
            device.upload(&seen)
        });
        let seen = seen.collect::<Result<_, _>>()?;
        Ok(Self { group, method, tokens, seen, account: Account::default() })
    }

    /// The same, whose memory is entered in an account.
    pub(crate) fn entered_in(self, account: &Account) -> Self {
        account.enter(Class::Buffers, self.seen.iter().map(|seen| seen.bytes() as u64).sum());
        Self { account: account.clone(), ..self }
    }

    /// Enters a buffer of a pass, which goes before its end.
    fn entered<T: Element>(&self, buffer: Result<Buffer<T>, DeviceError>) -> Result<Entered<T>, TrainError> {
        Ok(Entered::new(&self.account, Class::Buffers, buffer?))
    }

    /// Enters `len` elements of a pass.
    fn hold<T>(&self, len: usize) -> Held {
        self.account.hold(Class::Buffers, (len * size_of::<T>()) as u64)
    }

    /// The positions in their sequence of this rank's tokens, which ascend.
    pub fn positions(&self) -> Vec<u32> {
        self.method.cut().positions(self.tokens, self.group.world(), self.group.rank())
    }

    /// Tokens of a sequence that a rank has.
    fn tokens_of(&self, rank: usize) -> usize {
        self.method.cut().tokens(self.tokens, self.group.world(), rank)
    }

    /// Tokens of a sequence that this rank has.
    pub fn local_tokens(&self) -> usize {
        self.tokens_of(self.group.rank())
    }

    /// Puts what each rank has of `batch` whole sequences together, `width` values a token. Collective.
    ///
    /// # Errors
    /// A failed operation among the ranks.
    pub fn whole(&self, batch: usize, width: usize, own: &[u32]) -> Result<Vec<u32>, TrainError> {
        let ranks = self.group.world();
        let counts: Vec<usize> = (0..ranks).map(|rank| batch * self.tokens_of(rank) * width).collect();
        let mut by_rank = vec![0; batch * self.tokens * width];
        self.group.all_gather_v(own, &mut by_rank, &counts)?;
        let mut whole = vec![0; by_rank.len()];
        let mut rest = &by_rank[..];
        for rank in 0..ranks {
            let positions = self.method.cut().positions(self.tokens, ranks, rank);
            for sequence in 0..batch {
                for position in &positions {
                    let (values, after) = rest.split_at(width);
                    whole[(sequence * self.tokens + *position as usize) * width..][..width].copy_from_slice(values);
                    rest = after;
                }
            }
        }
        Ok(whole)
    }

    /// Tokens of a whole sequence.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Elements of the LSE that a forward pass leaves for its backward pass.
    pub fn lse_len(&self, batch: usize, heads: usize) -> usize {
        match self.method {
            Method::Ring => batch * heads * self.local_tokens(),
            Method::Ulysses => batch * heads / self.group.world() * self.tokens,
        }
    }

    /// Bytes that all ranks together send for one forward pass of sequences, and for one backward pass, elements of `element`
    /// bytes.
    pub fn sent_bytes(&self, sizes: &Sizes<'_>, element: usize) -> [u64; 2] {
        sent_bytes(self.method, self.group.world(), self.tokens, sizes, element)
    }

    /// Whether the heads can be shared out as this method needs it.
    ///
    /// # Errors
    /// Heads or key/value heads that do not fit the ranks.
    pub fn check(method: Method, cp: usize, heads: usize, kv_heads: usize) -> Result<(), ContextError> {
        if method == Method::Ring {
            return Ok(());
        }
        if !heads.is_multiple_of(cp) {
            return Err(ContextError::Heads { heads, cp });
        }
        if !kv_heads.is_multiple_of(cp) && !cp.is_multiple_of(kv_heads) {
            return Err(ContextError::KvHeads { kv_heads, cp });
        }
        Ok(())
    }

    /// `y` `[B, T, H D]` from packed rows `[B, T, (H + 2G) D]` of this rank's tokens, rotated already; `lse` has
    /// [`lse_len`](Self::lse_len) elements and is for [`backward`](Self::backward). Collective.
    ///
    /// # Errors
    /// Heads that cannot be shared out, regions that do not have the shape, a failed operation among the ranks.
    pub fn forward<T: Float>(
        &self,
        stream: &Stream,
        sizes: &Sizes<'_>,
        qkv: View<'_, T>,
        y: ViewMut<'_, T>,
        lse: ViewMut<'_, f32>,
    ) -> Result<(), TrainError> {
        Self::check(self.method, self.group.world(), sizes.heads, sizes.kv_heads)?;
        match self.method {
            Method::Ring => ring::forward(self, stream, sizes, qkv, y, lse),
            Method::Ulysses => ulysses::forward(self, stream, sizes, qkv, y, lse),
        }
    }

    /// The error of the packed rows, overwritten, from what [`forward`](Self::forward) was given and gave and the error of
    /// `y`. Collective.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn backward<T: Float>(
        &self,
        stream: &Stream,
        sizes: &Sizes<'_>,
        (qkv, y, lse): (View<'_, T>, View<'_, T>, View<'_, f32>),
        dy: View<'_, T>,
        dqkv: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        Self::check(self.method, self.group.world(), sizes.heads, sizes.kv_heads)?;
        match self.method {
            Method::Ring => ring::backward(self, stream, sizes, (qkv, y, lse), dy, dqkv),
            Method::Ulysses => ulysses::backward(self, stream, sizes, (qkv, y, lse), dy, dqkv),
        }
    }
}

impl Method {
    /// How its ranks share the tokens of a sequence.
    pub fn cut(self) -> Cut {
        match self {
            Self::Ring => Cut::Zigzag,
            Self::Ulysses => Cut::Contiguous,
        }
    }
}
