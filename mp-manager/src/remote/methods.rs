//! Types with named constructors and methods, for other programs.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use mp_core::message::{Incoming, IntoOutcome, Message};
use mp_core::serde_with::ByteString;
use mp_spawn::{Closure, StateClosure};
use serde::{Deserialize, Serialize};

use crate::answer::{MessageBody, read_whole};
use crate::error::{CallError, CallName};
use crate::object::{BoxedError, ObjectCall, ObjectResult, ResultPlacement, ServeError, ServedObject};
use crate::proxy::{ObjectLink, Proxy, read_value, to_object, try_to_object};

/// Function that creates an object from the bytes of its arguments.
pub(crate) type Constructor = Closure<ByteString, ObjectResult>;

/// Type with a name and named methods, which other programs call.
///
/// ```
/// use mp_manager::{Manager, Methods, RemoteManager};
/// use mp_spawn::closure;
///
/// struct Account { balance: u64 }
///
/// let methods = Methods::<Account>::of("Account")
///     .constructor(closure!([] |balance: u64| Account { balance }))
///     .method("deposit", closure!([] |account: &mut Account, amount: u64| {
///         account.balance += amount;
///         account.balance
///     }))
///     .method("withdraw", closure!([] |account: &mut Account, amount: u64| {
///         account.balance = account.balance.checked_sub(amount).ok_or("there is less in it")?;
///         Ok::<u64, &str>(account.balance)
///     }));
/// let manager = Manager::start()?;
/// manager.register(methods)?;
/// manager.serve("@example-of-methods", b"a secret")?;
///
/// // In another program, which has none of these types:
/// let remote = RemoteManager::connect("@example-of-methods", b"a secret")?;
/// let account = remote.create("Account", 10_u64)?;
/// assert_eq!(account.call::<u64>("deposit", 5_u64)?, 15);
/// let error = account.call::<u64>("withdraw", 100_u64).unwrap_err();
/// assert!(error.to_string().contains("there is less in it"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A method is a closure, as for [`Proxy::call_with`](crate::Proxy::call_with). The caller passes several
/// arguments as a tuple. Captures are sent to the server once, by
/// [`register`](crate::ManagerHandle::register).
#[must_use = "it is registered with `ManagerHandle::register`"]
pub struct Methods<T: 'static> {
    pub(crate) registered: RegisteredType,
    object: PhantomData<fn(T) -> T>,
}

/// Registered type in the server.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct RegisteredType {
    pub(crate) name: String,
    /// Compiler's name of the type.
    pub(crate) type_name: String,
    pub(crate) constructor: Option<Constructor>,
    pub(crate) methods: Vec<Method>,
}

/// Registered method in the server.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Method {
    pub(crate) signature: MethodSignature,
    pub(crate) task: Closure<(), ObjectCall>,
}

/// Name of a method, and the kind of its result.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct MethodSignature {
    pub(crate) name: String,
    /// Type of the returned object, if the method returns one.
    pub(crate) object: Option<ReturnedType>,
}

impl AsRef<MethodSignature> for Method {
    fn as_ref(&self) -> &MethodSignature {
        &self.signature
    }
}

impl AsRef<MethodSignature> for MethodSignature {
    fn as_ref(&self) -> &MethodSignature {
        self
    }
}

/// Finds the method of a call by name. With `returns_object`, the method must return an object, and otherwise
/// a value. Returns an error if it doesn't.
pub(crate) fn find_method<'a, M: AsRef<MethodSignature>>(
    methods: &'a [M],
    call: &CallName,
    returns_object: bool,
) -> Result<&'a M, CallError> {
    let Some(found) = methods.iter().find(|method| method.as_ref().name == call.closure) else {
        let known = methods.iter().map(|method| method.as_ref().name.clone()).collect();
        return Err(CallError::NoSuchMethod { call: call.clone(), known });
    };
    match (found.as_ref().object.is_some(), returns_object) {
        (true, false) => Err(unusable(
            "the method returns an object, which stays in the server: `call_to_object` has a handle to it",
        )),
        (false, true) => Err(unusable("the method returns a value, and no object: `call` has it")),
        _ => Ok(found),
    }
}

/// Decodes the object that a method has returned. Returns an error unless the object belongs to this server.
pub(crate) fn returned_object(value: MessageBody, server: u32) -> Result<Arc<ObjectLink>, CallError> {
    // `()` stands for any type: the registered method determines the type of the object.
    let link = Arc::clone(read_value::<Proxy<()>>(value)?.link());
    if link.server != server {
        let why = format!("the object is of another manager, whose server is pid {}", link.server);
        return Err(unusable(&why));
    }
    Ok(link)
}

/// Returns the error of a call whose result can't be used by the calling program.
fn unusable(why: &str) -> CallError {
    CallError::Value { why: why.into(), undecodable: None }
}

/// Type of an object that a method returns.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ReturnedType {
    /// Registered name of the type.
    pub(crate) name: String,
    /// Compiler's name of the type.
    pub(crate) type_name: String,
}

impl RegisteredType {
    pub(crate) fn method_names(&self) -> Vec<String> {
        self.methods.iter().map(|method| method.signature.name.clone()).collect()
    }

    /// Checks the types of returned objects. Returns an error text if a method of this type is declared to
    /// return objects of the registered type `named`, and returns objects of another type.
    pub(crate) fn name_conflict(&self, named: &RegisteredType) -> Option<String> {
        let signatures = self.methods.iter().map(|method| &method.signature);
        let returned = signatures.filter_map(|method| Some((&method.name, method.object.as_ref()?)));
        let mut wrong =
            returned.filter(|(_, object)| object.name == named.name && object.type_name != named.type_name);
        wrong.next().map(|(method, object)| {
            format!(
                "the method `{method}` of `{}` returns objects of the type `{}`, and `{}` is the name of \
                 `{}`",
                self.name, object.type_name, named.name, named.type_name
            )
        })
    }
}

impl<T: 'static> Methods<T> {
    /// Creates a description of a type with this name, without a constructor and methods.
    pub fn of(name: impl Into<String>) -> Self {
        let type_name = std::any::type_name::<T>().to_string();
        let (name, constructor, methods) = (name.into(), None, Vec::new());
        Methods { registered: RegisteredType { name, type_name, constructor, methods }, object: PhantomData }
    }

    /// Sets the constructor of the type. Without a constructor, programs can use only
    /// [published](crate::ManagerHandle::publish) objects. A later call replaces the constructor.
    pub fn constructor<A: Message>(self, make: Closure<A, T>) -> Self {
        self.with_constructor(Closure::from_parts(
            (make, ()),
            |(make, ()): &(Closure<A, T>, ()), bytes: ByteString| {
                Ok(ServedObject::new(make.call(read::<A>(bytes)?)))
            },
        ))
    }

    /// Sets a constructor that may fail. Callers receive its error as
    /// [`CallError::Raised`](crate::CallError::Raised).
    pub fn try_constructor<A: Message, E: Into<BoxedError> + 'static>(
        self,
        make: Closure<A, Result<T, E>>,
    ) -> Self {
        self.with_constructor(Closure::from_parts(
            (make, ()),
            |(make, ()): &(Closure<A, Result<T, E>>, ()), bytes: ByteString| {
                make.call(read::<A>(bytes)?).map(ServedObject::new).map_err(Into::into)
            },
        ))
    }

    fn with_constructor(mut self, constructor: Constructor) -> Self {
        self.registered.constructor = Some(constructor);
        self
    }

    /// Adds a method with this name.
    #[doc(alias = "exposed")]
    pub fn method<A: Message, R: IntoOutcome>(
        mut self,
        name: impl Into<String>,
        closure: StateClosure<T, A, R>,
    ) -> Self {
        let signature = MethodSignature { name: name.into(), object: None };
        let task = ObjectCall::bound(closure, ResultPlacement::Inline);
        self.registered.methods.push(Method { signature, task });
        self
    }

    /// Adds a method whose result becomes an object of the server, of a type with a registered name. That
    /// type can be registered later. The calling program gets a [`RemoteProxy`](crate::RemoteProxy) of the
    /// object from [`call_to_object`](crate::RemoteProxy::call_to_object).
    ///
    /// ```
    /// use mp_manager::{Manager, Methods, RemoteManager};
    /// use mp_spawn::closure;
    ///
    /// struct Folder(Vec<u64>);
    /// struct Reader(std::vec::IntoIter<u64>);
    ///
    /// let manager = Manager::start()?;
    /// manager.register(
    ///     Methods::<Folder>::of("Folder")
    ///         .constructor(closure!([] || Folder(vec![7, 8])))
    ///         .method_to_object("open", "Reader", closure!([] |folder: &mut Folder| {
    ///             Reader(folder.0.clone().into_iter())
    ///         })),
    /// )?;
    /// let next = closure!([] |reader: &mut Reader| reader.0.next());
    /// manager.register(Methods::<Reader>::of("Reader").method("next", next))?;
    /// manager.serve("@example-of-method-to-object", b"a secret")?;
    ///
    /// // In another program:
    /// let remote = RemoteManager::connect("@example-of-method-to-object", b"a secret")?;
    /// let reader = remote.create("Folder", ())?.call_to_object("open", ())?;
    /// assert_eq!(reader.type_name(), "Reader");
    /// assert_eq!(reader.call::<Option<u64>>("next", ())?, Some(7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The value need not be a message: it stays in the server, as with [`Proxy::call_to_object`].
    #[doc(alias = "method_to_typeid")]
    pub fn method_to_object<A: Message, U: Send + 'static>(
        self,
        name: impl Into<String>,
        type_name: impl Into<String>,
        closure: StateClosure<T, A, U>,
    ) -> Self {
        self.method_to_proxy(name, type_name, to_object(closure))
    }

    /// Adds a method like [`method_to_object`](Self::method_to_object), with a closure that may fail. Callers
    /// receive its error as [`CallError::Raised`](crate::CallError::Raised).
    pub fn try_method_to_object<A: Message, U: Send + 'static, E: Into<BoxedError> + 'static>(
        self,
        name: impl Into<String>,
        type_name: impl Into<String>,
        closure: StateClosure<T, A, Result<U, E>>,
    ) -> Self {
        self.method_to_proxy(name, type_name, try_to_object(closure))
    }

    /// Adds a method that returns an existing object of the server, of a type with a registered name. The
    /// closure returns the object's [`Proxy`], or an error. Programs call the method like a
    /// [`method_to_object`](Self::method_to_object).
    pub fn method_to_proxy<A: Message, U: 'static, R: IntoOutcome<Value = Proxy<U>>>(
        mut self,
        name: impl Into<String>,
        type_name: impl Into<String>,
        closure: StateClosure<T, A, R>,
    ) -> Self {
        let object =
            ReturnedType { name: type_name.into(), type_name: std::any::type_name::<U>().to_string() };
        let task = ObjectCall::bound(closure, ResultPlacement::SharedMemory);
        let signature = MethodSignature { name: name.into(), object: Some(object) };
        self.registered.methods.push(Method { signature, task });
        self
    }
}

impl<T> fmt::Debug for Methods<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegisteredType { name, type_name, constructor, .. } = &self.registered;
        let constructor = if constructor.is_some() { "a constructor" } else { "no constructor" };
        write!(f, "Methods({name} = {type_name}, {constructor}, {:?})", self.registered.method_names())
    }
}

/// Decodes the arguments of a constructor.
fn read<A: Message>(ByteString(bytes): ByteString) -> Result<A, BoxedError> {
    read_whole(&mut Incoming::from_plain(bytes)).map_err(|error| match error {
        mp_core::Error::Undecodable(why) => ServeError::BadArguments(why).into(),
        other => other.into(),
    })
}
