//! What a transport opens, it closes. Alone in its program, since it counts what the whole process has open.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use warpweft_comm::bootstrap::{Bootstrap, threads};
use warpweft_comm::transport::{Setup, TransportKind, connect};

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).expect("Linux shows it").count()
}

fn mapped() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("Linux shows it").matches("warpweft").count()
}

fn connect_and_leave(kind: TransportKind) {
    std::thread::scope(|scope| {
        for mut bootstrap in threads(3).expect("ranks") {
            scope.spawn(move || {
                let Bootstrap { rank, world, health, timeout, site, exchange, .. } = &mut bootstrap;
                let (rank, world, exchange) = (*rank, *world, &mut **exchange);
                connect(kind, Setup { rank, world, exchange, health, timeout: *timeout, site }).expect("a transport");
            });
        }
    });
}

#[test]
fn descriptors_threads_and_mappings_are_back_to_the_start_after_many_jobs() {
    let open = || -> (usize, usize, usize) { (entries("/proc/self/fd"), entries("/proc/self/task"), mapped()) };
    for kind in [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp] {
        connect_and_leave(kind);
        let before = open();
        (0..40).for_each(|_| connect_and_leave(kind));
        // A thread that has handed its connection on may be about to end, also one that `before` counted.
        let more = || [open().0 > before.0, open().1 > before.1, open().2 > before.2].contains(&true);
        let start = Instant::now();
        while more() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!more(), "{kind}: descriptors, threads, mappings were {before:?} and are {:?}", open());
    }
}
