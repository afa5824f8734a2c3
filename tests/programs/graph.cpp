// The same for C++: virtual calls, exceptions that are caught in loops, templates, functions of the library.
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace shapes {

struct Shape {
    virtual ~Shape() = default;
    virtual double area() const = 0;
};

struct Square : Shape {
    double side;
    explicit Square(double side) : side(side) {}
    double area() const override;
};

struct Circle : Shape {
    double radius;
    explicit Circle(double radius) : radius(radius) {}
    double area() const override;
};

__attribute__((noinline)) double Square::area() const { return side * side; }
__attribute__((noinline)) double Circle::area() const { return 3.14159 * radius * radius; }

template <typename T> __attribute__((noinline)) T largest(const std::vector<T> &all)
{
    if (all.empty())
        throw std::invalid_argument("nothing is largest of nothing");
    T found = all[0];
    for (const T &one : all)
        if (found < one)
            found = one;
    return found;
}

__attribute__((noinline)) double total(const std::vector<Shape *> &all)
{
    double sum = 0;
    for (const Shape *shape : all)
        sum += shape->area();
    return sum;
}

} // namespace shapes

__attribute__((noinline)) static int tries(int times)
{
    int caught = 0;
    for (int i = 0; i < times; i++) {
        try {
            std::vector<int> numbers(static_cast<size_t>(i % 2), i);
            caught += shapes::largest(numbers);
        } catch (const std::invalid_argument &error) {
            caught += error.what()[0] == 'n';
        }
    }
    return caught;
}

int main(int argc, char **argv)
{
    std::map<std::string, double> areas;
    shapes::Square square(argc);
    shapes::Circle circle(2);
    areas["square"] = shapes::total({&square});
    areas["both"] = shapes::total({&square, &circle});
    std::vector<std::string> names(argv, argv + argc);
    for (const auto &[name, area] : areas)
        std::printf("%s %.1f %d %s\n", name.c_str(), area, tries(argc), shapes::largest(names).c_str());
    return 0;
}
