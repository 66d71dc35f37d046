//! Kernels for training, each beside its f64 reference and its fast CPU path.
