//! Recordings that wait in the main world because a backend has enough of their models already.

use core::time::Duration;
use std::sync::Arc;

use bevy::ecs::resource::Resource;
use bevy::platform::collections::{HashMap, HashSet};

use super::MemoryRequest;
use crate::error::ReadError;
use crate::ir::{Backend, Layout, Op};
use crate::record::{Part, Recording};
use crate::schedule::{Owner, Owners, TensorBacklog, TensorBacklogs, Waiting};
use crate::tensor::Storage;

/// Work that goes to a backend now.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most are recordings")]
pub(crate) enum Released {
    Part(Backend, Part),
    Memory(MemoryRequest),
}

/// Work in the order in which it was recorded, until a backend may take it.
#[derive(Resource, Debug, Default)]
pub(crate) struct Held {
    waiting: Vec<Entry>,
    /// Number of the current frame.
    frame: u64,
}

/// The recordings of one frame for the same models, or one memory request.
#[derive(Debug)]
struct Entry {
    frame: u64,
    at: Duration,
    owners: Owners,
    content: Content,
    access: Access,
}

#[derive(Debug)]
enum Content {
    Parts(Vec<(Backend, Part)>),
    Memory(MemoryRequest),
}

/// The storages that work accesses.
#[derive(Debug, Default)]
struct Access {
    /// Storages whose earlier content is read.
    reads: HashSet<u64>,
    /// Storages that are written.
    writes: HashSet<u64>,
    /// The elements that are written, and whether they are the whole storage.
    stores: Vec<(u64, Layout, bool)>,
    /// Whether it must run in any case: it stores at a position that is only known at run time, or sends values to the
    /// other backend.
    lasting: bool,
}

impl Access {
    fn of_parts(parts: &[(Backend, Part)]) -> Self {
        let mut access = Self::default();
        parts.iter().for_each(|(_, part)| access.add(part));
        access
    }

    fn of_storage(storage: &Storage) -> Self {
        Self { writes: HashSet::from_iter([storage.id()]), lasting: true, ..Self::default() }
    }

    /// Adds a part that comes after what was added before.
    fn add(&mut self, part: &Part) {
        self.lasting |= part.requests.iter().any(|request| request.destination().is_some());
        for node in &part.graph.nodes {
            match &node.op {
                Op::Load { slot, .. } => {
                    let id = part.slots[*slot as usize].id();
                    if !self.stores.iter().any(|(stored, _, whole)| *whole && *stored == id) {
                        self.reads.insert(id);
                    }
                }
                Op::Store { slot, layout, at } => {
                    let storage = &part.slots[*slot as usize];
                    let whole = at.is_none()
                        && layout.is_contiguous()
                        && layout.offset == 0
                        && layout.elements() == storage.elements();
                    self.lasting |= at.is_some();
                    self.writes.insert(storage.id());
                    self.stores.push((storage.id(), layout.clone(), whole));
                }
                _ => {}
            }
        }
    }

    /// Whether the order of the two matters.
    fn conflicts(&self, other: &Self) -> bool {
        let writes = |a: &Self, b: &Self| a.writes.iter().any(|id| b.writes.contains(id) || b.reads.contains(id));
        writes(self, other) || writes(other, self)
    }

    /// Whether it could be left out if a newer recording did the same.
    fn is_replaceable(&self) -> bool {
        !self.lasting && self.reads.is_disjoint(&self.writes)
    }

    /// Whether `newer` writes everything that this writes, and does not read it before.
    fn is_covered_by(&self, newer: &Self) -> bool {
        let covers = |(id, layout, _): &(u64, Layout, bool)| {
            newer.stores.iter().any(|(other, there, whole)| other == id && (*whole || there == layout))
        };
        self.writes.is_disjoint(&newer.reads) && self.stores.iter().all(covers)
    }
}

/// The storages that waiting work accesses.
#[derive(Default)]
struct Blocked {
    read: HashSet<u64>,
    written: HashSet<u64>,
    owners: HashSet<Owner>,
}

impl Blocked {
    fn holds(&self, access: &Access) -> bool {
        let written = access.writes.iter().any(|id| self.written.contains(id) || self.read.contains(id));
        written || access.reads.iter().any(|id| self.written.contains(id))
    }

    fn add(&mut self, entry: &Entry) {
        self.read.extend(&entry.access.reads);
        self.written.extend(&entry.access.writes);
        self.owners.extend(&entry.owners);
    }
}

/// What decides about waiting work.
pub(crate) struct Rules<'a, P> {
    pub backlogs: &'a TensorBacklogs,
    /// Frames in flight per model.
    pub limit: usize,
    pub policy: P,
    /// Real time since the start of the app.
    pub now: Duration,
}

impl<P: Fn(Owner) -> TensorBacklog> Rules<'_, P> {
    fn admits(&self, owners: &Owners, frame: u64) -> bool {
        owners.iter().all(|owner| self.backlogs.admits(*owner, frame, self.limit))
    }

    fn replaces(&self, owners: &Owners) -> bool {
        owners.iter().all(|owner| (self.policy)(*owner) == TensorBacklog::Latest)
    }
}

impl Held {
    /// Begins a frame.
    pub(crate) fn begin_frame(&mut self) {
        self.frame += 1;
    }

    /// Adds a recording, or lets it through if nothing holds it.
    pub(crate) fn add<P: Fn(Owner) -> TensorBacklog>(
        &mut self,
        recording: Recording,
        rules: &Rules<P>,
        out: &mut Vec<Released>,
    ) {
        let mut owners = recording.owners;
        if owners.is_empty() {
            owners.push(None);
        }
        let open = [(Backend::Gpu, recording.gpu), (Backend::Cpu, recording.cpu)];
        let parts = recording.sealed.into_iter().chain(open).filter(|(_, part)| !part.graph.nodes.is_empty());
        let parts: Vec<(Backend, Part)> = parts.collect();
        if parts.is_empty() {
            return;
        }
        if self.waiting.is_empty() && rules.admits(&owners, self.frame) {
            return self.release(owners, self.frame, parts, rules.backlogs, out);
        }
        let access = Access::of_parts(&parts);
        // Recordings of one frame and model run or are replaced together, unless others depend on their order.
        let same = |entry: &Entry| entry.frame == self.frame && entry.owners == owners;
        if let Some(at) = self.waiting.iter().rposition(same)
            && self.waiting[at + 1..].iter().all(|other| !other.access.conflicts(&access))
            && let Content::Parts(earlier) = &mut self.waiting[at].content
        {
            earlier.extend(parts);
            self.waiting[at].access = Access::of_parts(earlier);
            return;
        }
        let content = Content::Parts(parts);
        self.waiting.push(Entry { frame: self.frame, at: rules.now, owners, content, access });
    }

    /// Adds the part that moves a storage to another backend.
    pub(crate) fn add_move(&mut self, backend: Backend, mut part: Part, out: &mut Vec<Released>) {
        part.frame = self.frame;
        let parts = vec![(backend, part)];
        let access = Access::of_parts(&parts);
        self.add_after(access, Content::Parts(parts), out);
    }

    /// Adds a memory request. It runs after the work that was recorded before it.
    pub(crate) fn add_request(&mut self, request: MemoryRequest, out: &mut Vec<Released>) {
        let access = match &request {
            MemoryRequest::Synchronize(storage, _) | MemoryRequest::Evict(storage) => Access::of_storage(storage),
            MemoryRequest::Optimize | MemoryRequest::Trim => Access::default(),
        };
        self.add_after(access, Content::Memory(request), out);
    }

    /// Lets work through that counts for no model, unless waiting work comes first.
    fn add_after(&mut self, access: Access, content: Content, out: &mut Vec<Released>) {
        if self.waiting.iter().any(|entry| entry.access.conflicts(&access)) {
            let at = self.waiting.last().map_or(Duration::ZERO, |entry| entry.at);
            return self.waiting.push(Entry { frame: self.frame, at, owners: Owners::new(), content, access });
        }
        out.extend(content.released());
    }

    /// Replaces and releases waiting work as far as possible. Returns the number of replaced recordings.
    pub(crate) fn proceed<P: Fn(Owner) -> TensorBacklog>(&mut self, rules: &Rules<P>, out: &mut Vec<Released>) -> u64 {
        if self.waiting.is_empty() {
            return 0;
        }
        let replaced = self.replace(rules);
        let mut blocked = Blocked::default();
        for entry in core::mem::take(&mut self.waiting) {
            let first = !entry.owners.iter().any(|owner| blocked.owners.contains(owner));
            if !first || !rules.admits(&entry.owners, entry.frame) || blocked.holds(&entry.access) {
                blocked.add(&entry);
                self.waiting.push(entry);
                continue;
            }
            match entry.content {
                Content::Parts(parts) if !entry.owners.is_empty() => {
                    self.release(entry.owners, entry.frame, parts, rules.backlogs, out);
                }
                content => out.extend(content.released()),
            }
        }
        replaced
    }

    /// Leaves out recordings that newer ones replace.
    fn replace<P: Fn(Owner) -> TensorBacklog>(&mut self, rules: &Rules<P>) -> u64 {
        let mut replaced = 0;
        let mut at = 0;
        while at < self.waiting.len() {
            let old = &self.waiting[at];
            if old.owners.is_empty() || !old.access.is_replaceable() || !rules.replaces(&old.owners) {
                at += 1;
                continue;
            }
            let newer = self.waiting[at + 1..].iter().find(|new| new.owners == old.owners && new.frame > old.frame);
            let replaces = |new: &Entry| {
                let alone = |other: &Entry| core::ptr::eq(other, new) || !other.access.conflicts(&old.access);
                old.access.is_covered_by(&new.access)
                    && self.waiting[at + 1..].iter().take_while(|other| !core::ptr::eq(*other, new)).all(alone)
            };
            if newer.is_some_and(replaces) {
                self.waiting.remove(at).content.refuse();
                replaced += 1;
            } else {
                at += 1;
            }
        }
        replaced
    }

    fn release(
        &self,
        owners: Owners,
        frame: u64,
        parts: Vec<(Backend, Part)>,
        backlogs: &TensorBacklogs,
        out: &mut Vec<Released>,
    ) {
        let ticket = backlogs.issue(owners, frame);
        for (backend, mut part) in parts {
            (part.frame, part.ticket) = (frame, Some(Arc::clone(&ticket)));
            out.push(Released::Part(backend, part));
        }
    }

    /// What waits, by model.
    pub(crate) fn waiting(&self, now: Duration) -> HashMap<Owner, Waiting> {
        let mut all: HashMap<Owner, (Waiting, u64)> = HashMap::default();
        for entry in &self.waiting {
            for owner in &entry.owners {
                let (waiting, last) = all.entry(*owner).or_default();
                if core::mem::replace(last, entry.frame) != entry.frame {
                    waiting.frames += 1;
                    waiting.lasting += usize::from(!entry.access.is_replaceable());
                }
                let age = now.saturating_sub(entry.at);
                waiting.age = Some(waiting.age.map_or(age, |oldest| oldest.max(age)));
            }
        }
        all.into_iter().map(|(owner, (waiting, _))| (owner, waiting)).collect()
    }

    /// Number of entries that wait, and how long the oldest has waited.
    pub(crate) fn oldest(&self, now: Duration) -> (usize, Duration) {
        (self.waiting.len(), self.waiting.first().map_or(Duration::ZERO, |entry| now.saturating_sub(entry.at)))
    }
}

impl Content {
    fn released(self) -> Vec<Released> {
        match self {
            Self::Parts(parts) => parts.into_iter().map(|(backend, part)| Released::Part(backend, part)).collect(),
            Self::Memory(request) => vec![Released::Memory(request)],
        }
    }

    /// Answers the readbacks of work that will not run.
    fn refuse(self) {
        if let Self::Parts(parts) = self {
            let requests = parts.into_iter().flat_map(|(_, part)| part.requests);
            requests.for_each(|request| request.fail(ReadError::Replaced));
        }
    }
}
