package io.yagura.bench;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;

/**
 * YCSB's database over a store of byte strings: a record with all its fields is one value, on every side alike.
 *
 * <p>An update of some fields reads the record first; with {@code writeallfields=true} it is one write.
 */
abstract class Records extends DB {
  /** Fields of a record, for which {@code writeallfields} needs no read before a write. */
  private int fieldCount;

  abstract void connect(String host, int port) throws Exception;

  /** The value, or null. */
  abstract byte[] get(String key) throws Exception;

  abstract void set(String key, byte[] value) throws Exception;

  abstract void remove(String key) throws Exception;

  @Override
  public void init() throws DBException {
    fieldCount = Integer.parseInt(getProperties().getProperty("fieldcount", "10"));
    String address = getProperties().getProperty("server");
    if (address == null || !address.contains(":")) {
      throw new DBException("give the server as -p server=HOST:PORT");
    }
    int colon = address.lastIndexOf(':');
    try {
      connect(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
    } catch (Exception e) {
      throw new DBException("cannot connect to " + address, e);
    }
  }

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    try {
      byte[] value = get(key);
      if (value == null) {
        return Status.NOT_FOUND;
      }
      decode(value, fields, result);
      return Status.OK;
    } catch (Exception e) {
      return failed(e);
    }
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    try {
      set(key, encode(values));
      return Status.OK;
    } catch (Exception e) {
      return failed(e);
    }
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    if (values.size() == fieldCount) {
      return insert(table, key, values);
    }
    try {
      Map<String, ByteIterator> all = new HashMap<>();
      byte[] value = get(key);
      if (value != null) {
        decode(value, null, all);
      }
      all.putAll(values);
      set(key, encode(all));
      return Status.OK;
    } catch (Exception e) {
      return failed(e);
    }
  }

  @Override
  public Status delete(String table, String key) {
    try {
      remove(key);
      return Status.OK;
    } catch (Exception e) {
      return failed(e);
    }
  }

  @Override
  public Status scan(
      String table, String start, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
    return Status.NOT_IMPLEMENTED;
  }

  private static Status failed(Exception e) {
    System.err.println(e);
    return Status.ERROR;
  }

  private static byte[] encode(Map<String, ByteIterator> values) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(4096);
    DataOutputStream out = new DataOutputStream(bytes);
    for (Map.Entry<String, ByteIterator> field : values.entrySet()) {
      byte[] value = field.getValue().toArray();
      out.writeUTF(field.getKey());
      out.writeShort(value.length);
      out.write(value);
    }
    return bytes.toByteArray();
  }

  private static void decode(byte[] record, Set<String> wanted, Map<String, ByteIterator> into) throws IOException {
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(record));
    while (in.available() > 0) {
      String name = in.readUTF();
      byte[] value = in.readNBytes(in.readUnsignedShort());
      if (wanted == null || wanted.contains(name)) {
        into.put(name, new ByteArrayByteIterator(value));
      }
    }
  }
}
