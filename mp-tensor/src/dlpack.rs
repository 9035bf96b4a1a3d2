//! Structures of [DLPack](https://dmlc.github.io/dlpack/latest/c_api.html), by which libraries of one process
//! exchange tensors.
//!
//! # Safety
//! This file only defines types. Some contain pointers to unsafe functions, which consumers call. No code
//! here calls them.
#![allow(unsafe_code)]

use std::ffi::c_void;

/// `DLDevice`: kind and number of a device.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "as the header has it")]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

/// `DLDataType`: element type.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "as the header has it")]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// `DLTensor`: strides are in elements, and may be null for elements in row-major order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the header has it")]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// `DLManagedTensor`, before version 1: the contents of a capsule named `dltensor`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the header has it")]
pub struct DLManagedTensor {
    pub dl_tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// `DLPackVersion`: major and minor version of DLPack.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "as the header has it")]
pub struct DLPackVersion {
    pub major: u32,
    pub minor: u32,
}

/// `DLManagedTensorVersioned`: the contents of a capsule named `dltensor_versioned`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the header has it")]
pub struct DLManagedTensorVersioned {
    pub version: DLPackVersion,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    pub flags: u64,
    pub dl_tensor: DLTensor,
}

/// Version of these structures. Another minor version has the same structures, and may have more flags and
/// types.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };
/// Flag of memory that consumers must not write.
pub const READ_ONLY: u64 = 1;
