package io.yagura.bench;

import java.nio.charset.StandardCharsets;
import redis.clients.jedis.Jedis;

/** Records over the Redis protocol: the gateway, or Redis itself. One connection for each client thread. */
public final class Redis extends Records {
  private Jedis jedis;

  @Override
  void connect(String host, int port) {
    jedis = new Jedis(host, port);
    jedis.connect();
  }

  @Override
  byte[] get(String key) {
    return jedis.get(key.getBytes(StandardCharsets.UTF_8));
  }

  @Override
  void set(String key, byte[] value) {
    jedis.set(key.getBytes(StandardCharsets.UTF_8), value);
  }

  @Override
  void remove(String key) {
    jedis.del(key);
  }

  @Override
  public void cleanup() {
    jedis.close();
  }
}
