//! What hands commands on writes down none of them: the list of methods stands here, once.

/// The methods of a [`Namespace`](crate::Namespace) that hands every command on, none left to its default: what is behind it may
/// override any. `$this` (`self`) is matched with the patterns; each has the expression of what is behind.
#[macro_export]
macro_rules! delegate_namespace {
    ($this:ident => { $($pattern:pat => $target:expr),+ $(,)? }) => {
        fn info(&self) -> $crate::NamespaceInfo {
            let $this = self;
            match $this { $($pattern => $target.info()),+ }
        }

        async fn read(&self, lba: $crate::Lba, buf: ::engine::Buf) -> (Result<(), $crate::Error>, ::engine::Buf) {
            let $this = self;
            match $this { $($pattern => $target.read(lba, buf).await),+ }
        }

        async fn write(
            &self,
            lba: $crate::Lba,
            data: ::engine::View,
            durability: $crate::Durability,
        ) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.write(lba, data, durability).await),+ }
        }

        async fn flush(&self) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.flush().await),+ }
        }

        async fn compare(&self, lba: $crate::Lba, expected: ::engine::View) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.compare(lba, expected).await),+ }
        }

        async fn compare_and_write(
            &self,
            lba: $crate::Lba,
            expected: ::engine::View,
            new: ::engine::View,
            durability: $crate::Durability,
        ) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.compare_and_write(lba, expected, new, durability).await),+ }
        }

        async fn write_zeroes(
            &self,
            lba: $crate::Lba,
            blocks: u64,
            durability: $crate::Durability,
        ) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.write_zeroes(lba, blocks, durability).await),+ }
        }

        async fn deallocate(&self, lba: $crate::Lba, blocks: u64) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.deallocate(lba, blocks).await),+ }
        }

        async fn verify(&self, lba: $crate::Lba, blocks: u64) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.verify(lba, blocks).await),+ }
        }

        async fn write_uncorrectable(&self, lba: $crate::Lba, blocks: u64) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.write_uncorrectable(lba, blocks).await),+ }
        }

        async fn hint_lifetime(&self, lifetime: ::engine::file::Lifetime) -> bool {
            let $this = self;
            match $this { $($pattern => $target.hint_lifetime(lifetime).await),+ }
        }

        fn writability(&self) -> $crate::Writability {
            let $this = self;
            match $this { $($pattern => $target.writability()),+ }
        }

        fn used_blocks(&self) -> u64 {
            let $this = self;
            match $this { $($pattern => $target.used_blocks()),+ }
        }

        fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.attribute(key)),+ }
        }

        async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.set_attribute(key, value).await),+ }
        }
    };
}
