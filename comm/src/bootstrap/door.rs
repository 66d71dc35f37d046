//! A listening port: lets in whoever proves the job's secret, and turns everybody else away without disturbing the job.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

use super::hello::{self, Guest, HelloError, Purpose};
use super::secret::Secret;
use crate::CommError;
use crate::notice::Notices;

/// Callers in the middle of their hello. More are hung up on, so that a flood costs neither threads nor memory.
const MOST_CALLERS: usize = 256;

/// An open port. Dropping it closes the port; callers that have been delivered stay connected.
pub(crate) struct Door {
    address: SocketAddr,
    /// Closed to wake the accepting thread for its end.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// What the accepting thread needs for each caller.
#[derive(Clone)]
struct Keeper {
    purpose: Purpose,
    secret: Secret,
    notices: Notices,
    callers: Arc<AtomicUsize>,
}

impl Door {
    /// Listens; each caller that has proved the secret is handed to `deliver`, on a thread of its own.
    pub(crate) fn open<F>(
        listener: TcpListener,
        purpose: Purpose,
        secret: Secret,
        notices: Notices,
        deliver: F,
    ) -> Result<Self, CommError>
    where
        F: Fn(Guest) + Clone + Send + 'static,
    {
        let failed = |error: std::io::Error| CommError::System {
            what: "opening a port for the ranks of the job".into(),
            reason: error.to_string(),
        };
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (wake, woken) = UnixStream::pair().map_err(failed)?;
        let keeper = Keeper { purpose, secret, notices, callers: Arc::default() };
        let thread = std::thread::Builder::new().name("warpweft-door".into());
        let thread = thread.spawn(move || keep(&listener, &woken, &keeper, &deliver)).map_err(failed)?;
        Ok(Self { address, wake: Some(wake), thread: Some(thread) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.wake.take();
        if let Some(thread) = self.thread.take() {
            // It never waits for a caller, so it ends at once; a panic in it has no one to tell any more.
            let _ = thread.join();
        }
    }
}

/// Accepts until the other end of `woken` is closed.
fn keep<F: Fn(Guest) + Clone + Send + 'static>(
    listener: &TcpListener,
    woken: &UnixStream,
    keeper: &Keeper,
    deliver: &F,
) {
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        if poll(&mut ready, None).is_ok() && !ready[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, address)) => keeper.admit(stream, address, deliver.clone()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => {
                // Out of descriptors, most likely: without a pause this would be a busy loop.
                keeper.notices.add(format!("a connection could not be accepted: {error}"));
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

impl Keeper {
    fn admit(&self, stream: TcpStream, address: SocketAddr, deliver: impl FnMut(Guest) + Send + 'static) {
        let refuse = |reason: &str| {
            // Without the port, so that a scanner's many calls are one line with a count.
            self.notices.add(format!("a connection from {} was turned away: {reason}", address.ip()));
        };
        if self.callers.fetch_add(1, Ordering::AcqRel) >= MOST_CALLERS {
            self.callers.fetch_sub(1, Ordering::AcqRel);
            return refuse(&format!("{MOST_CALLERS} others were in the middle of their hello"));
        }
        let (keeper, callers) = (self.clone(), self.callers.clone());
        let hello = move || {
            let report = |error: HelloError| {
                keeper.notices.add(format!("a connection from {} was turned away: {error}", address.ip()));
            };
            let guest = match stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)) {
                Ok(()) => hello::receive(stream, keeper.purpose, &keeper.secret, report),
                Err(error) => {
                    report(HelloError::Io(error.to_string()));
                    None
                }
            };
            keeper.callers.fetch_sub(1, Ordering::AcqRel);
            guest.into_iter().for_each(deliver);
        };
        if let Err(error) = std::thread::Builder::new().name("warpweft-hello".into()).spawn(hello) {
            callers.fetch_sub(1, Ordering::AcqRel);
            refuse(&error.to_string());
        }
    }
}
