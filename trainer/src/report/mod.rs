//! What a run says of itself: the log, the events for TensorBoard, the trace, the lines on the terminal.

mod error;
mod record;
pub mod trace;

pub use error::ReportError;
pub use record::StepRecord;
