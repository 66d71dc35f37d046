//! From the parsed text to the lowered form: types checked, registers numbered, labels to targets.
