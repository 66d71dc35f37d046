//! A schedule as a picture: text for a terminal, SVG for a page.

mod svg;
mod text;

pub use svg::svg;
pub use text::text;
