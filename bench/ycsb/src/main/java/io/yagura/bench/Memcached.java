package io.yagura.bench;

import java.net.InetSocketAddress;
import java.util.List;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.CachedData;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.transcoders.Transcoder;

/** Records over memcached's protocol. One connection for each client thread. */
public final class Memcached extends Records {
  private static final long SECONDS_MAX = 10;

  private MemcachedClient client;

  /** Bytes as they are: spymemcached's own transcoder compresses. */
  private static final Transcoder<byte[]> PLAIN =
      new Transcoder<>() {
        @Override
        public boolean asyncDecode(CachedData data) {
          return false;
        }

        @Override
        public CachedData encode(byte[] value) {
          return new CachedData(0, value, getMaxSize());
        }

        @Override
        public byte[] decode(CachedData data) {
          return data.getData();
        }

        @Override
        public int getMaxSize() {
          return CachedData.MAX_SIZE;
        }
      };

  @Override
  void connect(String host, int port) throws Exception {
    System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SLF4JLogger");
    ConnectionFactoryBuilder how = new ConnectionFactoryBuilder().setProtocol(Protocol.TEXT).setDaemon(true);
    client = new MemcachedClient(how.build(), List.of(new InetSocketAddress(host, port)));
  }

  @Override
  byte[] get(String key) {
    return client.get(key, PLAIN);
  }

  @Override
  void set(String key, byte[] value) throws Exception {
    if (!client.set(key, 0, value, PLAIN).get(SECONDS_MAX, TimeUnit.SECONDS)) {
      throw new IllegalStateException("memcached did not store " + key);
    }
  }

  @Override
  void remove(String key) throws Exception {
    client.delete(key).get(SECONDS_MAX, TimeUnit.SECONDS);
  }

  @Override
  public void cleanup() {
    client.shutdown();
  }
}
