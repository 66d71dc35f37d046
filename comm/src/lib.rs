//! Collective communication over threads, shared memory and TCP.
