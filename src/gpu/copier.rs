//! The thread that copies large values out of mapped staging buffers. It is separate from the task pools: their threads
//! may be busy with long compilations, and answers must not wait for those.

use std::sync::OnceLock;

use bevy::prelude::*;
use crossbeam_channel::Sender;

use crate::error::catch;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs one after the other on a thread of its own. The thread starts with the first job, and ends when the copier
/// is dropped and all jobs are done.
#[derive(Default)]
pub(super) struct Copier {
    /// `None` if there is no thread.
    sender: OnceLock<Option<Sender<Job>>>,
}

impl Copier {
    /// Queues a job. Without a thread it runs now.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let job: Job = Box::new(job);
        let rejected = match self.sender.get_or_init(start) {
            Some(sender) => sender.send(job).err().map(|error| error.into_inner()),
            None => Some(job),
        };
        if let Some(job) = rejected {
            job();
        }
    }
}

fn start() -> Option<Sender<Job>> {
    let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
    let work = move || {
        for job in receiver {
            if let Err(panic) = catch(job) {
                error!("a copy to the host panicked: {panic}");
            }
        }
    };
    match std::thread::Builder::new().name("tensor copies".to_owned()).spawn(work) {
        Ok(_) => Some(sender),
        Err(error) => {
            warn!("large values are copied during the frame, because there is no thread for it: {error}");
            None
        }
    }
}
