//! Lists in the server.

use mp_spawn::closure;

use crate::builtin::{Entry, ready};
use crate::error::CallError;
use crate::manager::ManagerHandle;

ready! {
    /// List in the server of a [`Manager`](crate::Manager), created by [`list`](ManagerHandle::list). Each
    /// method is one call.
    ///
    /// ```
    /// use mp_manager::{CallError, Manager};
    ///
    /// let manager = Manager::start()?;
    /// let list = manager.list::<String>()?;
    /// list.push("a".into())?;
    /// list.extend(["b".to_string(), "c".to_string()])?;
    /// assert_eq!(list.set(1, "B".into())?, "b");
    /// assert_eq!((list.get(1)?, list.get(9)?), (Some("B".into()), None));
    /// assert_eq!(list.iter()?.collect::<String>(), "aBc");
    /// // An invalid index changes nothing.
    /// let error = list.set(9, "x".into()).unwrap_err();
    /// assert!(error.to_string().contains("there is no index 9 in a list of 3"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// To read and change the list atomically, as for sorting, make one call of its [`proxy`](Self::proxy),
    /// with `&mut Vec<V>`. Errors of the methods are in the table at [`CallError`].
    #[doc(alias = "ListProxy")]
    #[doc(alias = "list")]
    List<V>, Vec<V>
}

fn no_index(index: usize, len: usize) -> String {
    format!("there is no index {index} in a list of {len}")
}

impl<V: Entry> List<V> {
    /// Appends a value.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "append")]
    #[track_caller]
    pub fn push(&self, value: V) -> Result<(), CallError> {
        self.proxy().call_with(closure!([] |list: &mut Vec<V>, value: V| list.push(value)), value)
    }

    /// Removes and returns the last value.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn pop(&self) -> Result<Option<V>, CallError> {
        self.proxy().call(closure!([] |list: &mut Vec<V>| list.pop()))
    }

    /// Returns a copy of the value at an index, or `None` beyond the end.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__getitem__")]
    #[track_caller]
    pub fn get(&self, index: usize) -> Result<Option<V>, CallError> {
        self.proxy().call_with(closure!([] |list: &mut Vec<V>, index: usize| list.get(index).cloned()), index)
    }

    /// Replaces the value at an index. Returns the previous value.
    ///
    /// # Errors
    /// [`CallError::Raised`] if the index is out of bounds. For other errors see the table at [`CallError`].
    #[doc(alias = "__setitem__")]
    #[track_caller]
    pub fn set(&self, index: usize, value: V) -> Result<V, CallError> {
        let set = closure!([] |list: &mut Vec<V>, index: usize, value: V| -> Result<V, String> {
            let len = list.len();
            let place = list.get_mut(index).ok_or_else(|| no_index(index, len))?;
            Ok(std::mem::replace(place, value))
        });
        self.proxy().call_with(set, (index, value))
    }

    /// Inserts a value before the value at an index, or at the end.
    ///
    /// # Errors
    /// [`CallError::Raised`] if the index is beyond the end. For other errors see the table at [`CallError`].
    #[track_caller]
    pub fn insert(&self, index: usize, value: V) -> Result<(), CallError> {
        let insert = closure!([] |list: &mut Vec<V>, index: usize, value: V| -> Result<(), String> {
            if index > list.len() {
                return Err(no_index(index, list.len()));
            }
            list.insert(index, value);
            Ok(())
        });
        self.proxy().call_with(insert, (index, value))
    }

    /// Removes and returns the value at an index. Later values move up.
    ///
    /// # Errors
    /// [`CallError::Raised`] if the index is out of bounds. For other errors see the table at [`CallError`].
    #[doc(alias = "__delitem__")]
    #[track_caller]
    pub fn remove(&self, index: usize) -> Result<V, CallError> {
        let remove = closure!([] |list: &mut Vec<V>, index: usize| -> Result<V, String> {
            if index < list.len() { Ok(list.remove(index)) } else { Err(no_index(index, list.len())) }
        });
        self.proxy().call_with(remove, index)
    }

    /// Appends many values in one call.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn extend(&self, values: impl IntoIterator<Item = V>) -> Result<(), CallError> {
        let values: Vec<V> = values.into_iter().collect();
        self.proxy().call_with(closure!([] |list: &mut Vec<V>, values: Vec<V>| list.extend(values)), values)
    }

    /// Returns the number of values.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "__len__")]
    #[track_caller]
    pub fn len(&self) -> Result<usize, CallError> {
        self.proxy().call(closure!([] |list: &mut Vec<V>| list.len()))
    }

    /// Returns `true` if there are no values.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn is_empty(&self) -> Result<bool, CallError> {
        Ok(self.len()? == 0)
    }

    /// Returns copies of all values, as of one moment.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[doc(alias = "copy")]
    #[track_caller]
    pub fn iter(&self) -> Result<impl Iterator<Item = V>, CallError> {
        Ok(self.proxy().call(closure!([] |list: &mut Vec<V>| list.clone()))?.into_iter())
    }

    /// Removes all values.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn clear(&self) -> Result<(), CallError> {
        self.proxy().call(closure!([] |list: &mut Vec<V>| list.clear()))
    }
}

impl ManagerHandle {
    /// Creates an empty list in the server.
    ///
    /// # Errors
    /// Same as [`create`](Self::create).
    #[track_caller]
    pub fn list<V: Entry>(&self) -> Result<List<V>, CallError> {
        self.create(Vec::<V>::new).map(List::from)
    }
}
