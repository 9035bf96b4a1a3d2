//! Subscriber that records spans and events.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Subscriber, set_global_default};
use tracing::{Event, Metadata};
use tracing_core::span::Current;

/// A recorded span or event.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) metadata: &'static Metadata<'static>,
    /// Fields of the entry, formatted by `Debug`.
    pub(crate) fields: Fields,
    /// Id of the enclosing span.
    pub(crate) parent: Option<u64>,
    /// Number of handles of the span. 0 after the span has ended.
    pub(crate) handles: u64,
}

/// Fields of a span or event.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(pub(crate) BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Entry {
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.0.get(name).map_or("", String::as_str)
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.field(name).parse().unwrap_or_else(|_| panic!("{name} of {self:?}"))
    }
}

thread_local!(static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) });

/// Recorder of all spans and events. The id of a span is the number of entries before it, plus one.
#[derive(Default)]
pub(crate) struct Recorder {
    entries: Mutex<Vec<Entry>>,
    /// Called with the target of each event and of each span that ends.
    hook: Option<fn(&str)>,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();

struct Installed;

/// Sets the recorder as the subscriber of this process. Each test calls this first, because a span that
/// another thread registers before could stay disabled.
pub(crate) fn install(hook: Option<fn(&str)>) -> &'static Recorder {
    RECORDER.get_or_init(|| {
        set_global_default(Installed).unwrap();
        Recorder { hook, ..Recorder::default() }
    })
}

impl Recorder {
    pub(crate) fn entries(&self, target: &str) -> Vec<Entry> {
        let entries = self.entries.lock().unwrap();
        entries.iter().filter(|entry| entry.metadata.target() == target).cloned().collect()
    }

    pub(crate) fn entry(&self, id: u64) -> Entry {
        self.entries.lock().unwrap()[id as usize - 1].clone()
    }

    /// Adds an entry, and returns its id.
    fn add(&self, metadata: &'static Metadata<'static>, fields: Fields, parent: Option<u64>) -> u64 {
        let mut entries = self.entries.lock().unwrap();
        entries.push(Entry { metadata, fields, parent, handles: 1 });
        entries.len() as u64
    }

    fn change<R>(&self, id: &Id, change: impl FnOnce(&mut Entry) -> R) -> R {
        change(&mut self.entries.lock().unwrap()[id.into_u64() as usize - 1])
    }

    fn call_hook(&self, target: &str) {
        self.hook.iter().for_each(|hook| hook(target));
    }
}

fn recorder() -> &'static Recorder {
    RECORDER.get_or_init(Recorder::default)
}

fn entered() -> Option<u64> {
    ENTERED.with_borrow(|entered| entered.last().copied())
}

impl Subscriber for Installed {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let explicit = attributes.parent().map(Id::into_u64);
        let parent = explicit.or_else(|| entered().filter(|_| attributes.is_contextual()));
        Id::from_u64(recorder().add(attributes.metadata(), fields, parent))
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        recorder().change(id, |entry| values.record(&mut entry.fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        recorder().add(event.metadata(), fields, entered());
        recorder().call_hook(event.metadata().target());
    }

    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.retain(|entered| *entered != id.into_u64()));
    }

    fn clone_span(&self, id: &Id) -> Id {
        recorder().change(id, |entry| entry.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let (handles, target) = recorder().change(&id, |entry| {
            entry.handles -= 1;
            (entry.handles, entry.metadata.target())
        });
        if handles == 0 {
            recorder().call_hook(target);
        }
        handles == 0
    }

    fn current_span(&self) -> Current {
        match entered() {
            Some(id) => Current::new(Id::from_u64(id), recorder().entry(id).metadata),
            None => Current::none(),
        }
    }
}
