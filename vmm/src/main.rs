//! `longarm`: the command.

fn main() {
    std::process::exit(vmm::cli::main());
}
