//! The lists run in thought on ranks that wait for each other, with little room for messages: whether they end.

use std::collections::VecDeque;

use crate::{Content, Fault, Message, Placement, Step};

/// Runs the lists with room for so many messages from one rank to another; with no room a send waits for its receive.
pub(crate) fn run(placement: &Placement, lists: &[Vec<Step>], room: usize) -> Result<(), Fault> {
    let p = placement.ranks();
    let mut at = vec![0; p];
    let mut channels: Vec<VecDeque<Message>> = vec![VecDeque::new(); p * p];
    let mut runnable: Vec<usize> = (0..p).collect();
    while let Some(rank) = runnable.pop() {
        while let Some(&step) = lists[rank].get(at[rank]) {
            match step {
                Step::Compute(_) => {}
                Step::Send(message) => {
                    let channel = &mut channels[rank * p + message.peer];
                    if channel.len() < room {
                        channel.push_back(message);
                        runnable.push(message.peer);
                    } else if room == 0 && meets(placement, lists, &at, rank, message)? {
                        // Both halves at once.
                        at[message.peer] += 1;
                        runnable.push(message.peer);
                    } else {
                        break;
                    }
                }
                Step::Recv(message) => {
                    let channel = &mut channels[message.peer * p + rank];
                    let Some(sent) = channel.pop_front() else {
                        if room == 0 {
                            // The sender looks whether this receive is the one it waits for.
                            let waits = lists[message.peer].get(at[message.peer]);
                            if matches!(waits, Some(Step::Send(sent)) if sent.peer == rank) {
                                runnable.push(message.peer);
                            }
                        }
                        break;
                    };
                    if !pairs(placement, sent, message) {
                        return Err(Fault::Crossed { rank, at: at[rank], step, met: Step::Send(sent) });
                    }
                    runnable.push(message.peer);
                }
            }
            at[rank] += 1;
        }
    }
    if let Some(rank) = (0..p).find(|&rank| at[rank] < lists[rank].len()) {
        return Err(Fault::Deadlock { room, rank, at: at[rank], step: lists[rank][at[rank]] });
    }
    match channels.iter().position(|channel| !channel.is_empty()) {
        Some(index) => Err(Fault::Unread { from: index / p, to: index % p, count: channels[index].len() }),
        None => Ok(()),
    }
}

/// Whether a send and a receive are two halves of one message.
fn pairs(placement: &Placement, sent: Message, taken: Message) -> bool {
    let to = match sent.content {
        Content::Activation => placement.after(sent.chunk),
        Content::Error => placement.before(sent.chunk),
    };
    sent.content == taken.content && sent.micro_batch == taken.micro_batch && to == Some(taken.chunk)
}

/// Whether the peer waits for a message of this rank now; it must be this one.
fn meets(
    placement: &Placement,
    lists: &[Vec<Step>],
    at: &[usize],
    rank: usize,
    message: Message,
) -> Result<bool, Fault> {
    let peer = message.peer;
    match lists[peer].get(at[peer]) {
        Some(&Step::Recv(taken)) if taken.peer == rank => {
            let crossed =
                Fault::Crossed { rank: peer, at: at[peer], step: Step::Recv(taken), met: Step::Send(message) };
            if pairs(placement, message, taken) { Ok(true) } else { Err(crossed) }
        }
        _ => Ok(false),
    }
}
