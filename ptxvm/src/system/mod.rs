//! What a host sees: devices, memory, modules, streams, events and launches.
