//! A software driver for Longarm's RDMA device: it drives the device as guest driver and provider do, with no virtual machine.
//!
//! [`node::Node`] is a guest: [`memory`] of its own behind DMA addresses that are no physical addresses, commands, objects. [`rings`]
//! posts, polls and arms by plain stores, as a process does. [`layout`] encodes everything from `docs/virtio-rdma.md` and from nothing
//! else. [`world::World`] puts one or two nodes on a fabric and runs their devices, step by step in the caller's thread or each on a
//! thread of its own; [`side`] has what most tests start from.

pub mod counting;
pub mod doorbell;
pub mod events;
pub mod host;
pub mod hostile;
pub mod layout;
pub mod memory;
pub mod node;
pub mod random;
pub mod rings;
pub mod side;
pub mod srq;
pub mod watchdog;
pub mod world;

/// Makes a test for each fabric of each body: `name::loopback`, `name::pair`, `name::tcp`.
#[macro_export]
macro_rules! on_every_fabric {
    ($($(#[$meta:meta])* fn $name:ident($world:ident: &World) $body:block)*) => {
        $(
            mod $name {
                use super::*;
                fn body($world: &World) $body
                $(#[$meta])*
                #[test]
                fn loopback() {
                    $crate::world::run(stringify!($name), $crate::world::Kind::Loopback, body);
                }
                $(#[$meta])*
                #[test]
                fn pair() {
                    $crate::world::run(stringify!($name), $crate::world::Kind::Pair, body);
                }
                $(#[$meta])*
                #[test]
                fn tcp() {
                    $crate::world::run(stringify!($name), $crate::world::Kind::Tcp, body);
                }
            }
        )*
    };
}
