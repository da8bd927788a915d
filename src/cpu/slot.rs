//! What the CPU backend holds for a storage: its words.

use std::sync::{Arc, RwLock};

use crate::kernel::HostWords;
use crate::tensor::Storage;

/// The words of a storage. Empty until the storage has been taken over.
pub(super) fn words_of(storage: &Storage) -> &RwLock<HostWords> {
    static NOTHING: RwLock<HostWords> = RwLock::new(HostWords::new());
    let slot = storage.host_slot(|| Arc::new(RwLock::new(HostWords::new())));
    // The slot is this backend's own, so that is its type.
    slot.downcast_ref().unwrap_or(&NOTHING)
}
