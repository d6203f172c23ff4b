//! The data servers as this server sees them: who they are, whether they live, and what it asks of them.
//!
//! | module | what |
//! | --- | --- |
//! | `registry` | every store ever registered, its connection, addresses, capacity, health |
//! | `allocate` | space that is set aside, and given back where one refused it; space that is freed |
//! | `capacity` | how full they are at this moment |
//! | `clone` | data files that share what others hold |
//! | `control` | SLUICE_CONTROL: what data servers call |
//! | `digest` | what they have of ranges, to compare |
//! | `damage` | what data servers hold and nobody is to see |
//! | `lockout` | fences of clients that may use nothing any more |
//! | `orders` | SLUICE_DATA_SERVER: what they are asked |
//! | `epochs` | capability epochs: when they begin, and when their handles are over |
//! | `fence` | durable fences of holders |
//! | `history` | whether the metadata are an older copy of what they have served |
//! | `cut` | truncations |
//! | `io` | READ, WRITE and COMMIT through this server, as an NFSv3 client of the data servers |
//! | `health` | data servers that fall silent |
//! | `resync` | making one data file equal to another |
//! | `seek` | the next data, the next hole |
//! | `tide` | whether a data server's store is an older copy of itself |
//! | `transfer` | copying ranges from file to file |

pub(crate) mod allocate;
pub(crate) mod capacity;
pub(crate) mod clone;
mod control;
mod cut;
mod damage;
pub(crate) mod digest;
pub(crate) mod epochs;
mod fence;
mod health;
mod history;
mod io;
pub(crate) mod lockout;
mod orders;
mod registry;
pub(crate) mod resync;
mod seek;
mod tide;
pub(crate) mod transfer;

pub(crate) use allocate::deallocate;
pub(crate) use control::Control;
pub(crate) use cut::{Cut, truncate};
pub(crate) use damage::{Damage, owner as damage_owner, run as run_damage};
pub(crate) use fence::{
    fence_holder_on_file, isolated, of_parted as fences_of_parted, predecessors_over, tell as tell_fences,
    tell_first as tell_fences_first, write_with as write_with_fences,
};
pub(crate) use health::run;
pub(crate) use history::Soundness;
pub(crate) use io::{commit, read, write, write_new};
pub(crate) use orders::{
    Observed, Unseen, can_cut, can_remove, has_hopeless, inventory, is_lost, machine, observe, observe_in,
    remove, scrub, stats, uncuttable,
};
pub(crate) use registry::{Placing, Registry, StoreHandle, holder, rights, together, wanted};
pub(crate) use seek::seek;
pub(crate) use tide::OlderStore;
