//! Kernel files.

use std::{io, path::Path, rc::Rc};

use super::Driver;
use crate::{Buf, View, file::OpenOptions};

/// `Clone + Send + Sync`: holds ids, no `Rc`.
#[derive(Clone)]
pub(crate) struct File {}

impl File {
    pub(crate) fn open(_path: &Path, _options: &OpenOptions) -> io::Result<File> {
        panic!("reactor")
    }
    pub(crate) fn size(&self) -> u64 {
        panic!("reactor")
    }
    pub(crate) fn logical_block_size(&self) -> u32 {
        panic!("reactor")
    }
    pub(crate) fn is_block_device(&self) -> bool {
        panic!("reactor")
    }
    pub(crate) async fn read_at(&self, _driver: Rc<Driver>, _offset: u64, _buf: Buf) -> (io::Result<()>, Buf) {
        panic!("reactor")
    }
    pub(crate) async fn write_at(
        &self,
        _driver: Rc<Driver>,
        _offset: u64,
        _data: View,
        _durable: bool,
    ) -> io::Result<()> {
        panic!("reactor")
    }
    pub(crate) async fn sync_data(&self, _driver: Rc<Driver>) -> io::Result<()> {
        panic!("reactor")
    }
    pub(crate) async fn punch_hole(&self, _driver: Rc<Driver>, _offset: u64, _len: u64) -> io::Result<()> {
        panic!("reactor")
    }
    pub(crate) async fn write_zeroes(&self, _driver: Rc<Driver>, _offset: u64, _len: u64) -> io::Result<()> {
        panic!("reactor")
    }
}
