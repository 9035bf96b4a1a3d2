//! Maps in the server.

use std::collections::HashMap;
use std::hash::Hash;

use mp_spawn::closure;

use crate::builtin::{Entry, ready};
use crate::error::CallError;
use crate::manager::ManagerHandle;

ready! {
    /// Map in the server of a [`Manager`](crate::Manager), created by [`dict`](ManagerHandle::dict). Each
    /// method is one call.
    ///
    /// ```
    /// use mp_manager::Manager;
    ///
    /// let manager = Manager::start()?;
    /// let ages = manager.dict::<String, u32>()?;
    /// assert_eq!(ages.insert("Ann", 30)?, None);
    /// ages.extend([("Bob".to_string(), 41), ("Cid".to_string(), 5)])?;
    /// assert_eq!(ages.get("Bob")?, Some(41));
    /// assert_eq!(ages.remove("Cid")?, Some(5));
    /// let mut names: Vec<_> = ages.keys()?;
    /// names.sort();
    /// assert_eq!(names, ["Ann", "Bob"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Other processes may change the map between two calls. To read and change it atomically, make one call
    /// of its [`proxy`](Self::proxy):
    ///
    /// ```
    /// # use mp_manager::Manager;
    /// use std::collections::HashMap;
    /// use mp_spawn::closure;
    ///
    /// # let manager = Manager::start()?;
    /// let counts = manager.dict::<String, u32>()?;
    /// let word = "a".to_string();
    /// counts.proxy().call(closure!([word] |counts: &mut HashMap<String, u32>| {
    ///     *counts.entry(word.clone()).or_default() += 1;
    /// }))?;
    /// assert_eq!(counts.get("a")?, Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The order of the entries is unspecified, as in a [`HashMap`]. Errors of the methods are in the table
    /// at [`CallError`].
    #[doc(alias = "DictProxy")]
    #[doc(alias = "dict")]
    Dict<K, V>, HashMap<K, V>
}

impl<K: Entry + Eq + Hash, V: Entry> Dict<K, V> {
    /// Inserts a value under a key. Returns the previous value.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__setitem__")]
    #[track_caller]
    pub fn insert(&self, key: impl Into<K>, value: V) -> Result<Option<V>, CallError> {
        let insert = closure!([] |map: &mut HashMap<K, V>, key: K, value: V| map.insert(key, value));
        self.proxy().call_with(insert, (key.into(), value))
    }

    /// Returns a copy of the value under a key.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__getitem__")]
    #[track_caller]
    pub fn get(&self, key: impl Into<K>) -> Result<Option<V>, CallError> {
        self.proxy()
            .call_with(closure!([] |map: &mut HashMap<K, V>, key: K| map.get(&key).cloned()), key.into())
    }

    /// Returns a copy of the value under a key, after inserting `value` if there is none.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "setdefault")]
    #[track_caller]
    pub fn get_or_insert(&self, key: impl Into<K>, value: V) -> Result<V, CallError> {
        type Found<V> = Result<V, std::convert::Infallible>;
        let get = closure!([] |map: &mut HashMap<K, V>, key: K, value: V| -> Found<V> {
            Ok(map.entry(key).or_insert(value).clone())
        });
        self.proxy().call_with(get, (key.into(), value))
    }

    /// Removes and returns the value under a key.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "pop")]
    #[doc(alias = "__delitem__")]
    #[track_caller]
    pub fn remove(&self, key: impl Into<K>) -> Result<Option<V>, CallError> {
        self.proxy().call_with(closure!([] |map: &mut HashMap<K, V>, key: K| map.remove(&key)), key.into())
    }

    /// Returns `true` if there is a value under a key.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__contains__")]
    #[track_caller]
    pub fn contains(&self, key: impl Into<K>) -> Result<bool, CallError> {
        self.proxy()
            .call_with(closure!([] |map: &mut HashMap<K, V>, key: K| map.contains_key(&key)), key.into())
    }

    /// Inserts many values in one call.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "update")]
    #[track_caller]
    pub fn extend(&self, entries: impl IntoIterator<Item = (K, V)>) -> Result<(), CallError> {
        let entries: Vec<(K, V)> = entries.into_iter().collect();
        self.proxy().call_with(
            closure!([] |map: &mut HashMap<K, V>, entries: Vec<(K, V)>| map.extend(entries)),
            entries,
        )
    }

    /// Returns the number of values.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__len__")]
    #[track_caller]
    pub fn len(&self) -> Result<usize, CallError> {
        self.proxy().call(closure!([] |map: &mut HashMap<K, V>| map.len()))
    }

    /// Returns `true` if there are no values.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn is_empty(&self) -> Result<bool, CallError> {
        Ok(self.len()? == 0)
    }

    /// Returns copies of all keys and values, as of one moment.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "items")]
    #[doc(alias = "copy")]
    #[track_caller]
    pub fn iter(&self) -> Result<impl Iterator<Item = (K, V)>, CallError> {
        let all = closure!([] |map: &mut HashMap<K, V>| -> Vec<(K, V)> {
            map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
        });
        Ok(self.proxy().call(all)?.into_iter())
    }

    /// Returns copies of all keys, as of one moment.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn keys(&self) -> Result<Vec<K>, CallError> {
        let all = closure!([] |map: &mut HashMap<K, V>| -> Vec<K> { map.keys().cloned().collect() });
        self.proxy().call(all)
    }

    /// Returns copies of all values, as of one moment.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn values(&self) -> Result<Vec<V>, CallError> {
        let all = closure!([] |map: &mut HashMap<K, V>| -> Vec<V> { map.values().cloned().collect() });
        self.proxy().call(all)
    }

    /// Removes all keys and values.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn clear(&self) -> Result<(), CallError> {
        self.proxy().call(closure!([] |map: &mut HashMap<K, V>| map.clear()))
    }
}

impl ManagerHandle {
    /// Creates an empty map in the server.
    ///
    /// # Errors
    /// Same as [`create`](Self::create).
    #[track_caller]
    pub fn dict<K: Entry + Eq + Hash, V: Entry>(&self) -> Result<Dict<K, V>, CallError> {
        self.create(HashMap::<K, V>::new).map(Dict::from)
    }
}
