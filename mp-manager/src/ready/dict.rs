//! A map in the server.

use std::collections::HashMap;
use std::hash::Hash;

use mp_spawn::closure;

use crate::error::CallError;
use crate::manager::ManagerHandle;
use crate::ready::{Entry, ready};

ready! {
    /// A map in the server of a [`Manager`](crate::Manager), which [`dict`](ManagerHandle::dict) makes. Each method is one call.
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
    /// What happens between two calls, others may change. A change that reads first is one call of its [`proxy`](Self::proxy):
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
    /// It has the order of a [`HashMap`]: none. Errors of its methods are in the table at [`CallError`].
    #[doc(alias = "DictProxy")]
    #[doc(alias = "dict")]
    Dict<K, V>, HashMap<K, V>
}

impl<K: Entry + Eq + Hash, V: Entry> Dict<K, V> {
    /// Puts a value under a key: the value that was there.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__setitem__")]
    #[track_caller]
    pub fn insert(&self, key: impl Into<K>, value: V) -> Result<Option<V>, CallError> {
        let insert = closure!([] |map: &mut HashMap<K, V>, key: K, value: V| map.insert(key, value));
        self.proxy().call_with(insert, (key.into(), value))
    }

    /// A copy of the value under a key.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__getitem__")]
    #[track_caller]
    pub fn get(&self, key: impl Into<K>) -> Result<Option<V>, CallError> {
        self.proxy()
            .call_with(closure!([] |map: &mut HashMap<K, V>, key: K| map.get(&key).cloned()), key.into())
    }

    /// A copy of the value under a key; if there is none, this one is put there.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "setdefault")]
    #[track_caller]
    pub fn get_or_insert(&self, key: impl Into<K>, value: V) -> Result<V, CallError> {
        let get = closure!([] |map: &mut HashMap<K, V>, key: K, value: V| -> Result<V, std::convert::Infallible> {
            Ok(map.entry(key).or_insert(value).clone())
        });
        self.proxy().call_with(get, (key.into(), value))
    }

    /// Takes out the value under a key.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "pop")]
    #[doc(alias = "__delitem__")]
    #[track_caller]
    pub fn remove(&self, key: impl Into<K>) -> Result<Option<V>, CallError> {
        self.proxy().call_with(closure!([] |map: &mut HashMap<K, V>, key: K| map.remove(&key)), key.into())
    }

    /// Whether there is a value under a key.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__contains__")]
    #[track_caller]
    pub fn contains(&self, key: impl Into<K>) -> Result<bool, CallError> {
        self.proxy()
            .call_with(closure!([] |map: &mut HashMap<K, V>, key: K| map.contains_key(&key)), key.into())
    }

    /// Puts many values, in one call.
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

    /// How many values there are.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__len__")]
    #[track_caller]
    pub fn len(&self) -> Result<usize, CallError> {
        self.proxy().call(closure!([] |map: &mut HashMap<K, V>| map.len()))
    }

    /// Whether there are none.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn is_empty(&self) -> Result<bool, CallError> {
        Ok(self.len()? == 0)
    }

    /// Copies of all keys and values, as they are at one moment.
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

    /// Copies of all keys, as they are at one moment.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn keys(&self) -> Result<Vec<K>, CallError> {
        let all = closure!([] |map: &mut HashMap<K, V>| -> Vec<K> { map.keys().cloned().collect() });
        self.proxy().call(all)
    }

    /// Copies of all values, as they are at one moment.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn values(&self) -> Result<Vec<V>, CallError> {
        let all = closure!([] |map: &mut HashMap<K, V>| -> Vec<V> { map.values().cloned().collect() });
        self.proxy().call(all)
    }

    /// Drops all keys and values.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn clear(&self) -> Result<(), CallError> {
        self.proxy().call(closure!([] |map: &mut HashMap<K, V>| map.clear()))
    }
}

impl ManagerHandle {
    /// Makes a map in the server, empty.
    ///
    /// # Errors
    /// Those of [`create`](Self::create).
    #[track_caller]
    pub fn dict<K: Entry + Eq + Hash, V: Entry>(&self) -> Result<Dict<K, V>, CallError> {
        self.create(HashMap::<K, V>::new).map(Dict::from)
    }
}
