//! `longarm`: the command.
fn main() {}
