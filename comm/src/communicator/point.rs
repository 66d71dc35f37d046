//! Point-to-point messages, alone and in groups.

use std::borrow::Cow;

use warpweft_device::{DType, DeviceError, Element};

use super::operations::argument;
use super::{Communicator, Shared};
use crate::CommError;
use crate::collective::{Algorithm, Descriptor, How, Memory, Operation, Place, Span, Told};
use crate::reduce::{Op, Reduction};
use crate::region::{HostMut, Region, RegionMut};

/// Messages that move at once: see [`Communicator::group`].
#[derive(Default)]
pub struct Group<'a> {
    inputs: Vec<Cow<'a, [u8]>>,
    outputs: Vec<Output<'a>>,
    messages: Vec<Message>,
    error: Option<CommError>,
}

/// Where a message goes, as bytes.
trait Bytes {
    fn slice(&mut self) -> &mut [u8];
    fn finish(self: Box<Self>) -> Result<(), DeviceError>;
}

type Output<'a> = Box<dyn Bytes + 'a>;

impl<T: Element> Bytes for HostMut<'_, T> {
    fn slice(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(HostMut::slice(self))
    }

    fn finish(self: Box<Self>) -> Result<(), DeviceError> {
        HostMut::finish(*self)
    }
}

/// One message; its memory is that of the same number among the inputs or outputs.
#[derive(Clone, Copy)]
struct Message {
    send: bool,
    peer: usize,
    dtype: DType,
    place: usize,
    bytes: usize,
}

impl<'a> Group<'a> {
    /// Adds a message to `peer`. Messages between two ranks arrive in the order in which they are added.
    pub fn send<T: Element>(&mut self, data: impl Into<Region<'a, T>>, peer: usize) -> &mut Self {
        match data.into().host() {
            Ok(host) => {
                let bytes: Cow<'a, [u8]> = match host {
                    Cow::Borrowed(host) => Cow::Borrowed(bytemuck::cast_slice(host)),
                    Cow::Owned(copy) => Cow::Owned(bytemuck::cast_slice(&copy).to_vec()),
                };
                let place = self.inputs.len();
                self.messages.push(Message { send: true, peer, dtype: T::DTYPE, place, bytes: bytes.len() });
                self.inputs.push(bytes);
            }
            Err(error) => self.error = self.error.take().or(Some(error.into())),
        }
        self
    }

    /// Adds a message from `peer`.
    pub fn recv<T: Element>(&mut self, data: impl Into<RegionMut<'a, T>>, peer: usize) -> &mut Self {
        match data.into().host() {
            Ok(mut host) => {
                let (place, bytes) = (self.outputs.len(), size_of_val(host.slice()));
                self.messages.push(Message { send: false, peer, dtype: T::DTYPE, place, bytes });
                self.outputs.push(Box::new(host));
            }
            Err(error) => self.error = self.error.take().or(Some(error.into())),
        }
        self
    }
}

/// # Point-to-point messages
///
/// A message must be received with the element type and count with which it was sent. A send may return before the
/// message is received, where the link has room for it; it does not have to: two ranks that first send to each other and
/// then receive wait for each other at some size. [`sendrecv`](Self::sendrecv) and [`group`](Self::group) never do.
impl Communicator {
    /// Sends elements to `peer`, which calls [`recv`](Self::recv).
    ///
    /// # Errors
    /// As for collectives.
    pub fn send<'a, T: Element>(&self, data: impl Into<Region<'a, T>>, peer: usize) -> Result<(), CommError> {
        self.group(|group| {
            group.send(data, peer);
        })
    }

    /// Receives elements from `peer`.
    ///
    /// # Errors
    /// As for collectives.
    pub fn recv<'a, T: Element>(&self, data: impl Into<RegionMut<'a, T>>, peer: usize) -> Result<(), CommError> {
        self.group(|group| {
            group.recv(data, peer);
        })
    }

    /// Sends to one rank and receives from one, at once.
    ///
    /// # Errors
    /// As for collectives.
    pub fn sendrecv<'a, T: Element>(
        &self,
        send: impl Into<Region<'a, T>>,
        to: usize,
        recv: impl Into<RegionMut<'a, T>>,
        from: usize,
    ) -> Result<(), CommError> {
        self.group(|group| {
            group.send(send, to).recv(recv, from);
        })
    }

    /// Moves any number of messages at once: none waits for another one, unless both go the same way between two ranks.
    /// Messages to the own rank are matched in the order in which they are added.
    ///
    /// ```
    /// # let comm = warpweft_comm::Communicator::alone();
    /// let (x, mut y) = ([1.0f32, 2.0], [0.0f32; 2]);
    /// comm.group(|group| {
    ///     group.send(&x, 0).recv(&mut y, 0);
    /// })?;
    /// assert_eq!(y, x);
    /// # Ok::<(), warpweft_comm::CommError>(())
    /// ```
    ///
    /// # Errors
    /// As for collectives.
    pub fn group<'a>(&self, build: impl FnOnce(&mut Group<'a>)) -> Result<(), CommError> {
        let mut group = Group::default();
        build(&mut group);
        let _turn = self.enter();
        self.shared.points(group)
    }
}

impl Shared {
    pub(super) fn points(&self, mut group: Group<'_>) -> Result<(), CommError> {
        if let Some(error) = group.error {
            return Err(error);
        }
        if let Some(message) = group.messages.iter().find(|message| message.peer >= self.world) {
            let what = format!("rank {} is no rank of {}", message.peer, self.world);
            return Err(argument(Operation::Point, what));
        }
        let to_self = self.matched(&group.messages)?;
        self.usable()?;
        for (send, recv) in to_self {
            group.outputs[recv.place].slice().copy_from_slice(&group.inputs[send.place]);
        }
        self.messages(&mut group)?;
        Ok(group.outputs.into_iter().try_for_each(|output| output.finish())?)
    }

    /// Moves the messages to and from other ranks.
    fn messages(&self, group: &mut Group<'_>) -> Result<(), CommError> {
        let Some(mut live) = self.live() else { return Ok(()) };
        let live = &mut *live;
        live.engine.plan.clear();
        live.descriptors.clear();
        for message in group.messages.iter().filter(|message| message.peer != self.rank) {
            let place = if message.send { Place::Input(message.place) } else { Place::Output(message.place) };
            let span = Span::new(place, 0..message.bytes);
            if message.send {
                live.engine.plan.send(message.peer, span);
            } else {
                live.engine.plan.recv(message.peer, span, How::Store);
            }
            live.descriptors.push(Descriptor {
                operation: Operation::Point,
                dtype: message.dtype,
                op: None,
                algorithm: Algorithm::Direct,
                root: None,
                count: (message.bytes / message.dtype.bytes()) as u64,
                counts: 0,
                sequence: live.engine.next_point(message.peer, message.send),
            });
        }
        live.engine.plan.end_round();
        let reduction = Reduction { dtype: DType::U8, op: Op::Sum, world: self.world };
        let inputs: Vec<&[u8]> = group.inputs.iter().map(AsRef::as_ref).collect();
        let mut outputs: Vec<&mut [u8]> = group.outputs.iter_mut().map(|output| output.slice()).collect();
        let memory = Memory { inputs: &inputs, outputs: &mut outputs };
        let around = self.circumstances();
        // The plan's spans are in bytes, since each message has an element type of its own.
        let result = live.engine.run(Told::Each(&live.descriptors), reduction, 1, memory, &around);
        result.map_err(|failure| self.fail(failure))
    }

    /// The messages to the own rank, each with the one that receives it.
    fn matched(&self, messages: &[Message]) -> Result<Vec<(Message, Message)>, CommError> {
        let own = |send: bool| messages.iter().filter(move |m| m.peer == self.rank && m.send == send).copied();
        let (sends, receives) = (own(true).count(), own(false).count());
        if sends != receives {
            let what = format!("{sends} messages to the own rank and {receives} from it in one group; they must match");
            return Err(argument(Operation::Point, what));
        }
        let pairs: Vec<_> = own(true).zip(own(false)).collect();
        for (send, recv) in &pairs {
            if send.dtype != recv.dtype || send.bytes != recv.bytes {
                let elements = |m: &Message| format!("{} elements of {}", m.bytes / m.dtype.bytes(), m.dtype);
                let what = format!("{} sent to the own rank, {} received", elements(send), elements(recv));
                return Err(argument(Operation::Point, what));
            }
        }
        Ok(pairs)
    }
}
