//! The CPU backend's data for a storage: its words.

use std::sync::{Arc, RwLock};

use crate::kernel::HostWords;
use crate::tensor::Storage;

/// The words of a storage. Empty until the storage has been made resident.
pub(super) fn words_of(storage: &Storage) -> &RwLock<HostWords> {
    static NOTHING: RwLock<HostWords> = RwLock::new(HostWords::new());
    let slot = storage.host_slot(|| Arc::new(RwLock::new(HostWords::new())));
    // Only this backend fills the slot, so the type always matches.
    slot.downcast_ref().unwrap_or(&NOTHING)
}
