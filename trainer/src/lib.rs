//! A small reference trainer whose numbers do not depend on the layout.
