// The store from C++: handles that free themselves, errors as exceptions, requests as futures.
//
//   c++ -std=c++17 tasks.cpp $(pkg-config --cflags --libs yagura) -lpthread -o tasks && ./tasks 127.0.0.1:4421
#include <yagura.h>

#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Close {
    void operator()(yagura_client *client) const { yagura_close(client); }
    void operator()(yagura_value *value) const { yagura_value_free(value); }
};
using Client = std::unique_ptr<yagura_client, Close>;
using Value = std::unique_ptr<yagura_value, Close>;

struct Failure : std::runtime_error {
    explicit Failure(yagura_status status) : std::runtime_error(yagura_error_message()), status(status) {}
    yagura_status status;
};

void check(yagura_status status) {
    if (status != YAGURA_OK) throw Failure(status);
}

yagura_bytes bytes(std::string_view text) { return {text.data(), text.size()}; }

std::string text(const Value &value) {
    return {static_cast<const char *>(yagura_value_data(value.get())), yagura_value_length(value.get())};
}

Client connect(const char *addresses) {
    yagura_client *client = nullptr;
    check(yagura_open(addresses, nullptr, &client));
    return Client(client);
}

// A completion that fulfils a promise: the value, or nothing.
using Found = std::optional<std::string>;

void fulfil(void *context, yagura_status status, yagura_value *found) {
    std::unique_ptr<std::promise<Found>> promise(static_cast<std::promise<Found> *>(context));
    Value value(found);
    if (status == YAGURA_OK)
        promise->set_value(value ? Found(text(value)) : Found());
    else if (status == YAGURA_ABSENT)
        promise->set_value(std::nullopt);
    else
        promise->set_exception(std::make_exception_ptr(Failure(status)));
}

template <typename Start> std::future<Found> request(Start start) {
    auto promise = std::make_unique<std::promise<Found>>();
    auto future = promise->get_future();
    check(start(promise.get()));
    promise.release();  // the completion's now
    return future;
}

}  // namespace

int main(int argc, char **argv) try {
    if (argc != 2) {
        std::cerr << "usage: tasks HOST:PORT[,HOST:PORT...]\n";
        return 2;
    }
    Client client = connect(argv[1]);
    std::vector<std::future<Found>> under_way;
    for (int task = 0; task < 100; ++task) {
        std::string key = "task-" + std::to_string(task), value = "done by " + std::to_string(task % 7);
        under_way.push_back(request([&](void *context) {
            return yagura_put_async(client.get(), bytes(key), bytes(value), nullptr, fulfil, context);
        }));
    }
    for (auto &put : under_way) put.get();
    auto found = request([&](void *context) { return yagura_get_async(client.get(), bytes("task-8"), fulfil, context); });
    auto absent = request([&](void *context) { return yagura_get_async(client.get(), bytes("task-x"), fulfil, context); });
    std::cout << "task-8: " << found.get().value_or("nothing") << ", task-x: " << absent.get().value_or("nothing") << '\n';
    try {
        check(yagura_put(client.get(), bytes(""), bytes("a key has a name"), nullptr));
    } catch (const Failure &failure) {
        std::cout << "as it should, an empty key fails: " << (failure.status == YAGURA_USAGE) << '\n';
    }
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
