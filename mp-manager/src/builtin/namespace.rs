//! Named values of any types in the server.

use std::any::{Any, type_name};
use std::collections::BTreeMap;
use std::fmt;

use mp_spawn::closure;

use crate::builtin::{Entry, ready};
use crate::error::CallError;
use crate::manager::ManagerHandle;

/// Values of a [`Namespace`], by name.
#[doc(hidden)]
#[derive(Default)]
pub struct AttributeMap(BTreeMap<String, Attribute>);

struct Attribute {
    value: Box<dyn Any>,
    type_name: &'static str,
}

impl fmt::Debug for AttributeMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, attribute)| (name, attribute.type_name))).finish()
    }
}

ready! {
    /// Named values of any types in the server of a [`Manager`](crate::Manager), created by
    /// [`namespace`](ManagerHandle::namespace). Each method is one call.
    ///
    /// ```
    /// use mp_manager::Manager;
    ///
    /// let manager = Manager::start()?;
    /// let settings = manager.namespace()?;
    /// settings.set("rate", 0.5)?;
    /// settings.set("name", "first".to_string())?;
    /// assert_eq!(settings.get::<f64>("rate")?, Some(0.5));
    /// assert_eq!(settings.get::<f64>("other")?, None);
    /// // A value can be read only as its own type.
    /// let error = settings.get::<u32>("rate").unwrap_err();
    /// assert!(error.to_string().contains("`rate` is f64, and not u32"));
    /// assert_eq!(settings.names()?, ["name", "rate"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Errors of the methods are in the table at [`CallError`].
    #[doc(alias = "NamespaceProxy")]
    Namespace<>, AttributeMap
}

impl Namespace {
    /// Sets the value of a name, replacing a value of any type.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__setattr__")]
    #[track_caller]
    pub fn set<V: Entry>(&self, name: impl Into<String>, value: V) -> Result<(), CallError> {
        let set = closure!([] |attributes: &mut AttributeMap, name: String, value: V| {
            let attribute = Attribute { value: Box::new(value), type_name: type_name::<V>() };
            attributes.0.insert(name, attribute);
        });
        self.proxy().call_with(set, (name.into(), value))
    }

    /// Returns a copy of the value of a name, or `None` if the name has no value.
    ///
    /// # Errors
    /// [`CallError::Raised`] if the value has another type. For other errors see the table at [`CallError`].
    #[doc(alias = "__getattr__")]
    #[track_caller]
    pub fn get<V: Entry>(&self, name: impl Into<String>) -> Result<Option<V>, CallError> {
        let get = closure!([] |attributes: &mut AttributeMap, name: String| -> Result<Option<V>, String> {
            let Some(attribute) = attributes.0.get(&name) else { return Ok(None) };
            let other = || format!("`{name}` is {}, and not {}", attribute.type_name, type_name::<V>());
            attribute.value.downcast_ref().cloned().map(Some).ok_or_else(other)
        });
        self.proxy().call_with(get, name.into())
    }

    /// Removes the value of a name. Returns `true` if the name had a value.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__delattr__")]
    #[track_caller]
    pub fn remove(&self, name: impl Into<String>) -> Result<bool, CallError> {
        let remove =
            closure!([] |attributes: &mut AttributeMap, name: String| attributes.0.remove(&name).is_some());
        self.proxy().call_with(remove, name.into())
    }

    /// Returns the names that have values, in alphabetical order.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn names(&self) -> Result<Vec<String>, CallError> {
        let names = closure!([] |attributes: &mut AttributeMap| -> Vec<String> {
            attributes.0.keys().cloned().collect()
        });
        self.proxy().call(names)
    }
}

impl ManagerHandle {
    /// Creates an empty namespace in the server.
    ///
    /// # Errors
    /// Same as [`create`](Self::create).
    #[doc(alias = "Namespace")]
    #[track_caller]
    pub fn namespace(&self) -> Result<Namespace, CallError> {
        self.create(AttributeMap::default).map(Namespace::from)
    }
}
